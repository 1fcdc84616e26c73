//! One text with expressions in it.

use super::data::{Data, Node};

const BEGIN: &str = "{{";
const END: &str = "}}";

/// Why an expression has no value. Each quotes it as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The rest of the text is all expression.
    #[error("{expression:?} has no end: write }}}} where it ends")]
    Unclosed {
        /// As it is written.
        expression: String,
    },
    /// It may be an expression elsewhere.
    #[error(
        "{expression:?} is more than can be rendered here: write {{{{ .Field.Field }}}} or {{{{ index .Field NUMBER }}}}"
    )]
    Unsupported {
        /// As it is written.
        expression: String,
    },
    /// No template has such a variable.
    #[error("{expression:?}: there is no {name:?}; there is {known}")]
    UnknownVariable {
        /// As it is written.
        expression: String,
        /// The first part of it.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The variable has no such field.
    #[error("{expression:?}: there is no {field:?}")]
    NoField {
        /// As it is written.
        expression: String,
        /// The part of it that is not known.
        field: String,
    },
    /// A list or a map has no place in a text.
    #[error("{expression:?} is a list or a map: name one field or element of it")]
    NotOneValue {
        /// As it is written.
        expression: String,
    },
    /// The list is shorter.
    #[error("{expression:?}: the list has no element {number}")]
    NoElement {
        /// As it is written.
        expression: String,
        /// From 0.
        number: usize,
    },
}

/// `text` with the values of its expressions in their places.
pub(super) fn render(text: &str, data: &Data<'_>) -> Result<String, ExpressionError> {
    let mut rendered = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, expression, after)) = split(rest)? {
        rendered.push_str(before);
        let value = evaluate(expression, data)?;
        let value = value
            .text()
            .ok_or_else(|| ExpressionError::NotOneValue { expression: expression.to_owned() })?;
        rendered.push_str(&value);
        rest = after;
    }
    rendered.push_str(rest);

    Ok(rendered)
}

/// Whether the first expression of `text` has a value that Go's `if` takes for true; `None` if there is
/// none. A field that the schema does not know and an element that is not there have none: the spec may be
/// of another release than the template.
pub(super) fn is_first_truthy(
    text: &str,
    data: &Data<'_>,
) -> Result<Option<bool>, ExpressionError> {
    let Some((_, expression, _)) = split(text)? else { return Ok(None) };

    match evaluate(expression, data) {
        Ok(value) => Ok(Some(value.is_truthy())),
        Err(ExpressionError::NoElement { .. } | ExpressionError::NoField { .. }) => Ok(Some(false)),
        Err(error) => Err(error),
    }
}

/// What is before the first expression, the expression with its braces, and what is after it.
fn split(text: &str) -> Result<Option<(&str, &str, &str)>, ExpressionError> {
    let Some(begin) = text.find(BEGIN) else { return Ok(None) };
    let (before, rest) = text.split_at(begin);
    let Some(end) = rest.find(END) else {
        return Err(ExpressionError::Unclosed { expression: rest.to_owned() });
    };
    let (expression, after) = rest.split_at(end + END.len());

    Ok(Some((before, expression, after)))
}

/// The value of an expression with its braces.
fn evaluate<'a>(expression: &str, data: &Data<'a>) -> Result<Node<'a>, ExpressionError> {
    let unsupported = || ExpressionError::Unsupported { expression: expression.to_owned() };
    let inner = expression.strip_prefix(BEGIN).and_then(|inner| inner.strip_suffix(END));
    let words: Vec<_> = inner.unwrap_or_default().split_whitespace().collect();

    match words[..] {
        [path] => field(expression, path, data),
        ["index", path, number] => {
            let number = number.parse().map_err(|_| unsupported())?;
            let list = field(expression, path, data)?;
            list.element(number).ok_or_else(|| ExpressionError::NoElement {
                expression: expression.to_owned(),
                number,
            })
        }
        _ => Err(unsupported()),
    }
}

/// The value of `.Field.Field`.
fn field<'a>(expression: &str, path: &str, data: &Data<'a>) -> Result<Node<'a>, ExpressionError> {
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let mut names = path.split('.');
    let is_path =
        names.next() == Some("") && path.len() > 1 && names.clone().all(|name| is_name(&name));
    let Some(first) = names.next().filter(|_| is_path) else {
        return Err(ExpressionError::Unsupported { expression: expression.to_owned() });
    };
    let root = data.root(first).ok_or_else(|| ExpressionError::UnknownVariable {
        expression: expression.to_owned(),
        name: first.to_owned(),
        known: data.names().collect::<Vec<_>>().join(", "),
    })?;
    names.try_fold(root, |node, name| {
        node.field(name).ok_or_else(|| ExpressionError::NoField {
            expression: expression.to_owned(),
            field: name.to_owned(),
        })
    })
}

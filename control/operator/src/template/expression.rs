//! Renders one text with expressions in it.

use super::data::{Data, Node};

const BEGIN: &str = "{{";
const END: &str = "}}";

/// Why an expression has no value. Each variant quotes it as written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The closing braces are missing.
    #[error("{expression:?} has no end: write }}}} where it ends")]
    Unclosed {
        /// The expression as written.
        expression: String,
    },
    /// It is Go's syntax, but not supported.
    #[error(
        "{expression:?} is more than can be rendered here: write {{{{ .Field.Field }}}} or {{{{ index .Field NUMBER }}}}"
    )]
    Unsupported {
        /// The expression as written.
        expression: String,
    },
    /// Templates have no such variable.
    #[error("{expression:?}: there is no {name:?}; there is {known}")]
    UnknownVariable {
        /// The expression as written.
        expression: String,
        /// The name of the variable.
        name: String,
        /// The names of all variables.
        known: String,
    },
    /// The value has no such field.
    #[error("{expression:?}: there is no {field:?}")]
    NoField {
        /// The expression as written.
        expression: String,
        /// The unknown field.
        field: String,
    },
    /// A list or a map cannot stand in a text.
    #[error("{expression:?} is a list or a map: name one field or element of it")]
    NotOneValue {
        /// The expression as written.
        expression: String,
    },
    /// The list is shorter.
    #[error("{expression:?}: the list has no element {number}")]
    NoElement {
        /// The expression as written.
        expression: String,
        /// The number of the element, from 0.
        number: usize,
    },
}

/// `text` with its expressions replaced by their values.
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

/// Whether the first expression of `text` has a value that Go's `if` takes for true; `None` if there is no expression.
/// An unknown field and a missing element have no value: the spec may be of another release than the template.
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

/// The text before the first expression, the expression with its braces, and the text after it.
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

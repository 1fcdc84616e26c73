//! Renders a template for one gateway: the part of Go's `text/template` that gateways need, with the rules that Liqo
//! adds.
//!
//! - Every string of a template is rendered: `{{ .Name }}` and the like are replaced.
//! - A string that renders to a decimal integer becomes one, except where only strings are valid: in a map that has
//!   `labels` or `annotations`, and in all below it. There every other value becomes a string.
//! - A key like `?nodePort` is optional: its mark is removed, and the key too if its value is empty, zero or missing.
//!
//! # Not here
//!
//! Conditions, loops, functions and pipelines, except for `index LIST NUMBER`. Each is an error that quotes the
//! expression.

mod data;
mod expression;
#[cfg(test)]
mod tests;

use std::fmt;

use serde_json::{Map, Value};

pub use data::Data;
pub use expression::ExpressionError;

/// Marks an optional key.
const OPTIONAL: char = '?';

/// In and below a map that has one of these keys all values are strings.
const STRINGS: [&str; 2] = ["labels", "annotations"];

/// Why a template cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TemplateError {
    /// Where in the template, as `spec.service.spec.ports[0].port`.
    pub place: Place,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong at one place of a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// An expression has no value.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// The mark of an optional key is for string values only.
    #[error("a key with a question mark needs a string, as \"{{{{ .Spec.Endpoint.NodePort }}}}\"")]
    OptionalNotString,
    /// Two keys render to the same.
    #[error("there is this key with a question mark as well: leave one of them out")]
    KeyTwice,
}

/// A place in a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Element(usize),
}

impl Place {
    fn below(&self, step: Step) -> Self {
        let steps = self.0.iter().cloned().chain([step]);

        Self(steps.collect())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if number == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Element(place) => write!(f, "[{place}]")?,
            }
        }

        Ok(())
    }
}

/// Renders `template` with `data`. Keys are never rendered.
///
/// # Errors
///
/// [`TemplateError`] with the place and the expression.
pub fn render(template: &Value, data: &Data<'_>) -> Result<Value, TemplateError> {
    Renderer { data }.value(template, &Place::default(), false)
}

/// Renders `metadata`, in which all values are strings.
///
/// # Errors
///
/// [`TemplateError`] with the place and the expression.
pub(crate) fn render_metadata(template: &Value, data: &Data<'_>) -> Result<Value, TemplateError> {
    let place = Place(vec![Step::Key("metadata".to_owned())]);

    Renderer { data }.value(template, &place, true)
}

struct Renderer<'a> {
    data: &'a Data<'a>,
}

impl Renderer<'_> {
    fn value(
        &self,
        template: &Value,
        place: &Place,
        is_text: bool,
    ) -> Result<Value, TemplateError> {
        match template {
            Value::Object(map) => self.map(map, place, is_text).map(Value::Object),
            Value::Array(list) => {
                let elements = list.iter().enumerate().map(|(number, element)| {
                    self.value(element, &place.below(Step::Element(number)), is_text)
                });
                elements.collect::<Result<_, _>>().map(Value::Array)
            }
            Value::String(text) => {
                let text = expression::render(text, self.data).map_err(|error| {
                    let place = place.clone();
                    TemplateError { place, problem: error.into() }
                })?;
                Ok(typed(text, is_text))
            }
            Value::Bool(_) | Value::Number(_) if is_text => Ok(Value::String(template.to_string())),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(template.clone()),
        }
    }

    fn map(
        &self,
        map: &Map<String, Value>,
        place: &Place,
        is_text: bool,
    ) -> Result<Map<String, Value>, TemplateError> {
        let is_text = is_text || STRINGS.iter().any(|key| map.contains_key(*key));
        let mut rendered = Map::new();
        for (key, value) in map {
            let place = place.below(Step::Key(key.clone()));
            let (key, value) = match key.strip_prefix(OPTIONAL) {
                Some(name) => {
                    let Value::String(text) = value else {
                        return Err(TemplateError { place, problem: Problem::OptionalNotString });
                    };
                    match self.optional(text, &place)? {
                        // A key without an expression in its value is not optional, and is kept.
                        Presence::Always => (key.as_str(), value.clone()),
                        Presence::Here => (name, self.value(value, &place, is_text)?),
                        Presence::Not => continue,
                    }
                }
                None => (key.as_str(), self.value(value, &place, is_text)?),
            };
            if rendered.insert(key.to_owned(), value).is_some() {
                return Err(TemplateError { place, problem: Problem::KeyTwice });
            }
        }

        Ok(rendered)
    }

    /// Evaluates the first expression of an optional `text`.
    fn optional(&self, text: &str, place: &Place) -> Result<Presence, TemplateError> {
        let says = expression::is_first_truthy(text, self.data).map_err(|error| {
            let place = place.clone();
            TemplateError { place, problem: error.into() }
        })?;

        Ok(match says {
            None => Presence::Always,
            Some(true) => Presence::Here,
            Some(false) => Presence::Not,
        })
    }
}

/// Whether an optional key is kept.
enum Presence {
    Always,
    Here,
    Not,
}

fn typed(text: String, is_text: bool) -> Value {
    match text.parse::<i64>() {
        Ok(number) if !is_text => number.into(),
        Ok(_) | Err(_) => Value::String(text),
    }
}

//! Deserializers for what other releases of the API wrote.
//!
//! A list may be a single value (releases before 1.0), or be missing, or be `null`. Invalid values are left to the
//! plan, which can report them; here every value with a meaning is read.

use serde::de::{DeserializeOwned, Error as _, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A list of strings, or one string for a list of one.
pub(super) fn strings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let values = match Value::deserialize(deserializer)? {
        Value::Null => Vec::new(),
        Value::Array(values) => values,
        value @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            vec![value]
        }
    };

    Ok(values.into_iter().map(text).collect())
}

/// The default in place of `null`.
pub(super) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A structure. A list is an error, though serde would read it as the fields in their order.
pub(super) fn structure<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let unexpected = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(None),
        value @ Value::Object(_) => {
            return serde_json::from_value(value).map(Some).map_err(D::Error::custom);
        }
        Value::Array(_) => Unexpected::Seq,
        Value::Bool(value) => Unexpected::Bool(value),
        Value::Number(_) => Unexpected::Other("number"),
        Value::String(_) => Unexpected::Other("string"),
    };

    Err(D::Error::invalid_type(unexpected, &"an object"))
}

/// The value in the notation in which it can be found in the object.
fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        value @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            value.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_read_from_every_valid_form() {
        let read = |value: Value| strings(value).unwrap();

        assert_eq!(read(json!(["10.0.0.0/8", ""])), ["10.0.0.0/8", ""]);
        assert_eq!(read(json!("10.0.0.0/8")), ["10.0.0.0/8"]);
        assert_eq!(read(json!(["10.0.0.0/8", null, 7])), ["10.0.0.0/8", "", "7"]);
        assert_eq!(read(json!(null)), [""; 0]);
    }

    #[test]
    fn a_structure_is_no_list() {
        assert_eq!(structure::<Vec<u8>, _>(json!(null)).unwrap(), None);
        let error = structure::<Vec<u8>, _>(json!([1])).unwrap_err().to_string();
        assert_eq!(error, "invalid type: sequence, expected an object");
        let map = structure::<serde_json::Map<String, Value>, _>(json!({"a": 1})).unwrap();
        assert_eq!(map.unwrap()["a"], 1);
    }

    #[test]
    fn null_is_the_default() {
        assert_eq!(or_default::<Vec<u8>, _>(json!(null)).unwrap(), [0; 0]);
        assert_eq!(or_default::<Vec<u8>, _>(json!([1])).unwrap(), [1]);
    }
}

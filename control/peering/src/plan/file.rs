//! The objects in a file, in the formats of `kubectl`: documents of YAML or JSON, and lists of objects.

use serde_json::Value;

use super::super::CommandError;

/// The fields that identify an object.
const NEEDED: [&str; 3] = ["/apiVersion", "/kind", "/metadata/name"];

/// The objects in `text`, which was read from `name`.
///
/// # Errors
///
/// [`CommandError::Malformed`] if it is not YAML, or a document has no API version, kind or name.
pub fn objects(name: &str, text: &str) -> Result<Vec<Value>, CommandError> {
    let malformed =
        |cause: String| CommandError::Malformed { what: name.to_owned(), error_text: cause };
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let cause = error.to_string();
        malformed(cause.lines().next().unwrap_or_default().to_owned())
    })?;
    let mut objects = Vec::new();
    for (place, mut document) in (1..).zip(documents) {
        let is_list = document.get("kind").and_then(Value::as_str).is_some_and(|it| it == "List");
        let items = document.get_mut("items").and_then(Value::as_array_mut).filter(|_| is_list);
        let found = match items {
            Some(items) => std::mem::take(items),
            None => vec![document],
        };
        for object in found {
            let has = |pointer| object.pointer(pointer).is_some_and(Value::is_string);
            if let Some(missing) = NEEDED.into_iter().find(|pointer| !has(pointer)) {
                let missing = missing.trim_start_matches('/').replace('/', ".");
                return Err(malformed(format!(
                    "document {place} has no {missing}: write a whole object"
                )));
            }
            objects.push(object);
        }
    }
    if objects.is_empty() {
        return Err(malformed("it has no object in it".to_owned()));
    }

    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_the_same() {
        let one = "apiVersion: v1\nkind: IP\nmetadata:\n  name: one\n";
        let two = "apiVersion: v1\nkind: IP\nmetadata:\n  name: two\n";
        let documents = objects("-", &format!("---\n{one}---\n{two}")).unwrap();
        let list = r#"{"kind": "List", "items": [
            {"apiVersion": "v1", "kind": "IP", "metadata": {"name": "one"}},
            {"apiVersion": "v1", "kind": "IP", "metadata": {"name": "two"}}
        ]}"#;

        assert_eq!(documents.len(), 2);
        assert_eq!(objects("-", list).unwrap(), documents);
        for (wrong, text) in [
            ("", "no object"),
            ("kind: IP\nmetadata:\n  name: a\n", "document 1 has no apiVersion: "),
            ("apiVersion: v1\nmetadata:\n  name: a\n", "document 1 has no kind: "),
            ("apiVersion: v1\nkind: IP\n", "document 1 has no metadata.name: "),
            ("a: [", "a.yaml cannot be read"),
            ("text", "document 1"),
        ] {
            let error = objects("a.yaml", wrong).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(text), "{error}");
        }
    }
}

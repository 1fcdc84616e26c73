//! The objects in a file, as `kubectl` reads them: documents of YAML or JSON, and lists of objects.

use serde_json::Value;

use super::super::CommandError;

/// What `text`, read from `name`, has in it.
///
/// # Errors
///
/// [`CommandError::Malformed`] if it is no YAML, or something in it is no object with a kind and a name.
pub fn objects(name: &str, text: &str) -> Result<Vec<Value>, CommandError> {
    let malformed = |said: String| CommandError::Malformed { what: name.to_owned(), said };
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let said = error.to_string();
        malformed(said.lines().next().unwrap_or_default().to_owned())
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
            if !has("/kind") || !has("/metadata/name") {
                return Err(malformed(format!(
                    "document {place} has no kind and metadata.name: write a whole object"
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
        let one = "kind: IP\nmetadata:\n  name: one\n";
        let two = "kind: IP\nmetadata:\n  name: two\n";
        let documents = objects("-", &format!("---\n{one}---\n{two}")).unwrap();
        let list = r#"{"kind": "List", "items": [
            {"kind": "IP", "metadata": {"name": "one"}}, {"kind": "IP", "metadata": {"name": "two"}}
        ]}"#;

        assert_eq!(documents.len(), 2);
        assert_eq!(objects("-", list).unwrap(), documents);
        for (wrong, said) in [
            ("", "no object"),
            ("kind: IP\n", "document 1"),
            ("a: [", "a.yaml cannot be read"),
            ("text", "document 1"),
        ] {
            let error = objects("a.yaml", wrong).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(said), "{error}");
        }
    }
}

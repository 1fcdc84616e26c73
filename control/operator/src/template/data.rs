//! The values that the expressions of a template may use.

use std::borrow::Cow;

use serde_json::{Value, json};
use strait_api::identity::Identity;

/// The values of one gateway, under the names that Go has for them.
#[derive(Clone, Debug)]
pub struct Data<'a> {
    /// By name: a value, and which fields it may have.
    roots: Vec<(&'static str, Node<'a>)>,
}

/// A value, which may be absent, and its schema.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    /// `None`: the schema knows the field, and it is not there.
    pub(super) value: Option<Cow<'a, Value>>,
    /// An OpenAPI schema; `None`: it may have any field.
    schema: Option<&'a Value>,
}

impl<'a> Data<'a> {
    /// The values of the gateway `identity` with the `spec` of its `GatewayServer` or `GatewayClient`, `schema` of its
    /// definition, and the Secret with its keys called `secret`.
    #[must_use]
    pub fn new(identity: &Identity, spec: &'a Value, schema: &'a Value, secret: &str) -> Self {
        let Identity { name, namespace, remote_cluster_id, uid, mode: _ } = identity;
        let text = |text: &str| Node { value: Some(Cow::Owned(json!(text))), schema: None };

        Self {
            roots: vec![
                ("Name", text(name)),
                ("Namespace", text(namespace)),
                ("GatewayUID", text(uid)),
                ("ClusterID", text(remote_cluster_id)),
                ("SecretName", text(secret)),
                ("Spec", Node { value: Some(Cow::Borrowed(spec)), schema: Some(schema) }),
            ],
        }
    }

    /// All names, for the error on an unknown one.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.roots.iter().map(|(name, _)| *name)
    }

    pub(super) fn root(&self, name: &str) -> Option<Node<'a>> {
        let (_, node) = self.roots.iter().find(|(known, _)| *known == name)?;

        Some(node.clone())
    }
}

impl<'a> Node<'a> {
    /// Its field; `None` if the schema has no such field, unlike one without a value.
    ///
    /// Go's names differ from those of the API in case alone: `LoadBalancerIP`, `loadBalancerIP`.
    pub(super) fn field(&self, name: &str) -> Option<Self> {
        let is_it = |key: &&String| key.eq_ignore_ascii_case(name);
        let known = self.schema.and_then(|schema| schema.get("properties")?.as_object());
        let schema = match known {
            None => None,
            Some(known) => {
                let key = known.keys().find(is_it)?;
                Some(known.get(key)?)
            }
        };
        let value = match self.value.as_ref() {
            Some(Cow::Borrowed(Value::Object(map))) => {
                let key = map.keys().find(is_it);
                key.and_then(|key| map.get(key)).map(Cow::Borrowed)
            }
            // An owned value is a text and has no fields.
            Some(Cow::Borrowed(_) | Cow::Owned(_)) => return None,
            None => None,
        };

        // Without a schema every field that is present is known.
        (schema.is_some() || value.is_some()).then_some(Self { value, schema })
    }

    /// Its element; `None` if there is none.
    pub(super) fn element(&self, number: usize) -> Option<Self> {
        let schema = self.schema.and_then(|schema| schema.get("items"));
        match self.value.as_ref()? {
            Cow::Borrowed(list) => {
                let value = list.get(number)?;
                Some(Self { value: Some(Cow::Borrowed(value)), schema })
            }
            Cow::Owned(_) => None,
        }
    }

    /// Whether Go's `if` takes it for true: it is there, and neither empty nor zero.
    pub(super) fn is_truthy(&self) -> bool {
        match self.value.as_deref() {
            None | Some(Value::Null) => false,
            Some(Value::Bool(is)) => *is,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
        }
    }

    /// The text that replaces the expression: empty for an absent value. `None` for a list or a map.
    pub(super) fn text(&self) -> Option<String> {
        match self.value.as_deref() {
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(text)) => Some(text.clone()),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
            Some(Value::Array(_) | Value::Object(_)) => None,
        }
    }
}

//! Schemas of the scalars of the API. They are strings here, so that a value that the schema of another release admits
//! can still be read, and be reported if it is invalid.

use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A prefix in CIDR notation.
pub(super) fn cidr(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "cidr"})
}

/// Prefixes in CIDR notation.
pub(super) fn cidrs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": "string", "format": "cidr"}})
}

/// An address; the API knows IPv4 only.
pub(super) fn ipv4(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "ipv4"})
}

/// At most 64 different ports.
pub(super) fn ports(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 64, "items": {"type": "integer", "format": "int32"}})
}

/// A number without a fixed width.
pub(super) fn integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer"})
}

/// Bytes, in base64.
pub(super) fn bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "byte"})
}

/// Any value.
pub(super) fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A type of Kubernetes itself, without its descriptions: with those a definition exceeds the 256 KiB that `kubectl
/// apply` may record in an annotation.
pub(super) fn brief<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<T>();
    let mut forget = RecursiveTransform(|schema: &mut Schema| {
        schema.remove("description");
    });
    forget.transform(&mut schema);

    schema
}

/// Conditions as Kubernetes API conventions define them.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "message": {"type": "string", "maxLength": 32768},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                }
            }
        }
    })
}

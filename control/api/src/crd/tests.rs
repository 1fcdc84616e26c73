use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};

use super::{FORMER_VERSION, all, file_name, manifest};

/// The API in a readable notation.
const CONTRACT: &str = include_str!("contract.md");

/// Where our schema is less strict, as the type belongs to another operator.
const OPEN_SPEC: (&str, &str) = (
    "spec: <core/apps spec: attachMetadata, endpoints, jobLabel, labelLimit…>",
    "spec: object preserveUnknownFields",
);

/// Where our schema accepts more: one prefix in place of a list of one.
const PREFIXES: (&str, &str) = ("[]string(cidr)", "string(cidr) or []string(cidr)");

/// Columns of a `Configuration`, whose lists Liqo prints with brackets.
const COLUMNS: [&str; 4] = [
    ".spec.remote.cidr.pod",
    ".status.remote.cidr.pod",
    ".spec.remote.cidr.external",
    ".status.remote.cidr.external",
];

#[test]
fn every_kind_is_as_the_contract_says() {
    let mut contract = sections(&CONTRACT.replace(OPEN_SPEC.0, OPEN_SPEC.1));
    let configuration = contract.get_mut("Configuration").unwrap();
    let (spec, status) = configuration.split_once("\nstatus:").unwrap();
    *configuration = format!("{}\nstatus:{status}", spec.replace(PREFIXES.0, PREFIXES.1));
    for column in COLUMNS {
        let (theirs, ours) = (format!("{column} "), format!("{column}[*] "));
        assert!(configuration.contains(&theirs), "{column}");
        *configuration = configuration.replace(&theirs, &ours);
    }

    let ours: BTreeMap<_, _> =
        all().iter().map(|crd| (crd.spec.names.kind.clone(), notation(crd))).collect();

    assert_eq!(ours.keys().collect::<Vec<_>>(), contract.keys().collect::<Vec<_>>());
    let mut differences = String::new();
    for (kind, section) in &contract {
        let (ours, theirs): (Vec<_>, Vec<_>) =
            (ours[kind].lines().collect(), section.lines().collect());
        for (sign, these, those) in [('-', &theirs, &ours), ('+', &ours, &theirs)] {
            for line in these.iter().filter(|line| !those.contains(line)) {
                let _ = writeln!(differences, "{kind}: {sign} {line}");
            }
        }
        if ours != theirs && differences.is_empty() {
            let _ = writeln!(differences, "{kind}: the order of lines");
        }
    }
    assert!(differences.is_empty(), "contract (-) and definitions (+):\n{differences}");
}

#[test]
fn the_former_version_has_the_same_fields() {
    let mut kinds = Vec::new();
    for crd in all() {
        let [stored, others @ ..] = crd.spec.versions.as_slice() else { panic!("a version") };
        assert!(
            stored.storage && stored.served && stored.name != FORMER_VERSION || others.is_empty()
        );
        let [former] = others else { continue };

        assert_eq!(
            (former.name.as_str(), former.served, former.storage),
            ("v1alpha1", true, false)
        );
        assert_eq!(former.schema, stored.schema);
        assert_eq!(former.subresources, stored.subresources);
        assert_eq!(former.additional_printer_columns, stored.additional_printer_columns);
        kinds.push(crd.spec.names.kind);
    }

    let documented = [
        "Configuration",
        "Connection",
        "GatewayClient",
        "GatewayServer",
        "PublicKey",
        "WgGatewayClientTemplate",
        "WgGatewayServerTemplate",
    ];
    assert_eq!(kinds, documented);
}

#[test]
fn deploy_has_one_manifest_per_definition() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let mut written: BTreeMap<_, _> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();

    let ours: BTreeMap<_, _> =
        all().iter().map(|crd| (file_name(crd), manifest(crd).unwrap())).collect();

    let listed = written.remove("kustomization.yaml").unwrap();
    let listed: Vec<_> = listed.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(listed, ours.keys().collect::<Vec<_>>());
    assert!(written == ours, "deploy/crds is out of date: run `make crds`");
}

#[test]
fn a_manifest_fits_into_the_annotation_of_kubectl() {
    for crd in all() {
        let text = manifest(&crd).unwrap();
        let json = serde_json::to_string(&crd).unwrap();

        assert!(json.len() < 256 * 1024, "{}: {} bytes", file_name(&crd), json.len());
        assert!(text.starts_with("---\napiVersion: apiextensions.k8s.io/v1\n"), "{}", &text[..80]);
    }
}

/// The contract by kind, without decoration.
fn sections(contract: &str) -> BTreeMap<String, String> {
    let mut sections = BTreeMap::<String, String>::new();
    let mut kind = String::new();
    for line in contract.lines().filter(|line| !line.is_empty() && *line != "```") {
        if let Some(title) = line.strip_prefix("#### `") {
            kind = title.split('`').next().unwrap_or_default().to_owned();
        }
        if !kind.is_empty() {
            let section = sections.entry(kind.clone()).or_default();
            section.push_str(line);
            section.push('\n');
        }
    }

    sections
}

fn notation(crd: &CustomResourceDefinition) -> String {
    let (spec, names) = (&crd.spec, &crd.spec.names);
    let version = spec.versions.iter().find(|version| version.storage).expect("a stored version");
    let yes = |is: bool| if is { "yes" } else { "no" };
    let status = version.subresources.as_ref().is_some_and(|sub| sub.status.is_some());
    let short: Vec<String> =
        names.short_names.iter().flatten().map(|name| format!("`{name}`")).collect();

    let mut text =
        format!("#### `{}` — {}/{} — {}\n", names.kind, spec.group, version.name, spec.scope);
    let _ = write!(
        text,
        "plural `{}` · singular `{}` · shortNames {} · categories {} · status subresource: {}",
        names.plural,
        names.singular.as_deref().unwrap_or_default(),
        if short.is_empty() { "—".to_owned() } else { short.join(", ") },
        names.categories.iter().flatten().cloned().collect::<Vec<_>>().join(", "),
        yes(status),
    );
    for (label, value) in crd.metadata.labels.iter().flatten() {
        let _ = write!(text, " · CRD labels {{'{label}': '{value}'}}");
    }
    text.push('\n');

    let columns: Vec<String> = version
        .additional_printer_columns
        .iter()
        .flatten()
        .map(|column| {
            let priority = column.priority.map(|p| format!(", priority {p}")).unwrap_or_default();
            format!("`{}` {} ({}{priority})", column.name, column.json_path, column.type_)
        })
        .collect();
    if !columns.is_empty() {
        let _ = writeln!(text, "printer columns: {}", columns.join("; "));
    }

    let root = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    properties(root.expect("a schema"), 0, &mut text);

    text
}

fn properties(schema: &JSONSchemaProps, depth: usize, text: &mut String) {
    let required = schema.required.clone().unwrap_or_default();
    for (name, property) in schema.properties.iter().flatten() {
        if depth == 0 && !["spec", "status"].contains(&name.as_str()) {
            continue;
        }
        let star = if required.contains(name) { "*" } else { "" };
        let line = format!("{}{name}{star}: {}", "  ".repeat(depth), shape(property));
        let _ = writeln!(text, "{}", line.trim_end());
        let inner = items(property).unwrap_or(property);
        if items(property).is_some() || shape(inner).starts_with("object") {
            properties(inner, depth + 1, text);
        }
    }
}

/// The schema of a value, in one line.
fn shape(schema: &JSONSchemaProps) -> String {
    let type_ = schema.type_.as_deref().unwrap_or_default();
    let format = schema.format.as_ref().map(|format| format!("({format})")).unwrap_or_default();
    let names: Vec<&str> = schema.properties.iter().flatten().map(|(n, _)| n.as_str()).collect();
    let mut text = match (type_, items(schema)) {
        ("array", Some(items)) if items.type_.as_deref() == Some("object") => "[]".to_owned(),
        ("array", Some(items)) => format!("[]{}", shape(items)),
        ("", Some(items)) => format!("{0} or []{0}", shape(items)),
        _ if names == REFERENCE => {
            "corev1.ObjectReference{apiVersion,kind,name,namespace,uid,fieldPath,resourceVersion}"
                .to_owned()
        }
        _ if names == ["name"] && schema.required.is_none() => {
            "corev1.LocalObjectReference{name}".to_owned()
        }
        _ if is_foreign(&names) => format!("<core/apps spec: {}…>", names[..4].join(", ")),
        ("object", _) if schema.additional_properties.is_some() => "map[string]string".to_owned(),
        _ => format!("{type_}{format}"),
    };

    // Without a type it permits several types, not unknown fields.
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) && !type_.is_empty() {
        text.push_str(" preserveUnknownFields");
    }
    if let Some(values) = &schema.enum_ {
        let values: Vec<&str> = values.iter().filter_map(|value| value.0.as_str()).collect();
        let _ = write!(text, " enum{{{}}}", values.join(","));
    }
    if let Some(value) = &schema.default {
        let _ = write!(text, " default={}", value.0);
    }
    if let Some(pattern) = &schema.pattern {
        let _ = write!(text, " pattern={pattern}");
    }
    if let Some(minimum) = schema.minimum {
        let _ = write!(text, " minimum={minimum}");
    }
    let bounds = [
        ("minLength", schema.min_length),
        ("maxLength", schema.max_length),
        ("minItems", schema.min_items),
        ("maxItems", schema.max_items),
        ("maxProperties", schema.max_properties),
    ];
    for (name, value) in bounds {
        if let Some(value) = value {
            let _ = write!(text, " {name}={value}");
        }
    }
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let message = rule.message.as_deref().unwrap_or_default();
        let _ = write!(text, " CEL[{} => \"{message}\"]", rule.rule);
    }

    text
}

/// The spec of a `Deployment` or of a `Service`, whose fields are not listed.
fn is_foreign(names: &[&str]) -> bool {
    ["progressDeadlineSeconds", "clusterIP"].iter().any(|name| names.contains(name))
}

/// In alphabetical order, as a schema has them.
const REFERENCE: [&str; 7] =
    ["apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"];

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(items) => Some(items),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

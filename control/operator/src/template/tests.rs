use proptest::prelude::*;
use serde_json::json;
use strait_api::crd::spec_schema;
use strait_api::identity::{Identity, Mode};
use strait_api::{GatewayClient, GatewayServer};

use super::*;

fn identity() -> Identity {
    Identity {
        name: "server".to_owned(),
        namespace: "liqo-tenant-milan".to_owned(),
        remote_cluster_id: "milan".to_owned(),
        uid: "5b8e".to_owned(),
        mode: Mode::Server,
    }
}

fn spec() -> Value {
    json!({
        "mtu": 1340,
        "endpoint": {"port": 51840, "serviceType": "LoadBalancer", "nodePort": 0},
        "secretRef": {"name": "keys"},
        "serverTemplateRef": {"apiVersion": "v1"},
    })
}

fn with<T>(spec: &Value, job: impl FnOnce(&Data<'_>) -> T) -> T {
    let schema = spec_schema::<GatewayServer>();

    job(&Data::new(&identity(), spec, &schema, "keys"))
}

fn rendered(template: &Value) -> Value {
    with(&spec(), |data| render(template, data)).unwrap()
}

fn refused(template: &Value) -> String {
    with(&spec(), |data| render(template, data)).unwrap_err().to_string()
}

#[test]
fn expressions_are_replaced_by_values() {
    let template = json!({
        "replicas": 1,
        "flag": "--mtu={{ .Spec.MTU }}",
        "all": "{{.Name}}/{{ .Namespace }}/{{ .ClusterID }}/{{ .GatewayUID }}/{{ .SecretName }}",
        "list": ["{{ .Spec.Endpoint.ServiceType }}", true, null, "plain"],
        "version": "{{ .Spec.ServerTemplateRef.APIVersion }}",
        "missing": "a{{ .Spec.Endpoint.LoadBalancerIP }}b",
    });

    assert_eq!(
        rendered(&template),
        json!({
            "replicas": 1,
            "flag": "--mtu=1340",
            "all": "server/liqo-tenant-milan/milan/5b8e/keys",
            "list": ["LoadBalancer", true, null, "plain"],
            "version": "v1",
            "missing": "ab",
        })
    );
}

#[test]
fn integers_are_typed_except_beside_labels() {
    let port = "{{ .Spec.Endpoint.Port }}";
    let template = json!({
        "port": port,
        "literal": "007",
        "metadata": {"name": port, "labels": {"port": port, "on": true, "number": 1}},
        "spec": {"template": {"annotations": {}, "spec": {"port": [port]}}},
    });

    assert_eq!(
        rendered(&template),
        json!({
            "port": 51840,
            "literal": 7,
            "metadata": {
                "name": "51840",
                "labels": {"port": "51840", "on": "true", "number": "1"},
            },
            "spec": {"template": {"annotations": {}, "spec": {"port": ["51840"]}}},
        })
    );
    let metadata = with(&spec(), |data| render_metadata(&json!({"name": port}), data));
    assert_eq!(metadata, Ok(json!({"name": "51840"})));
}

#[test]
fn an_optional_key_goes_with_its_value() {
    let template = json!({
        "?port": "{{ .Spec.Endpoint.Port }}",
        "?type": "is {{ .Spec.Endpoint.ServiceType }}",
        "?zero": "{{ .Spec.Endpoint.NodePort }}",
        "?loadBalancerIP": "{{ .Spec.Endpoint.LoadBalancerIP }}",
        "?nothing": "{{ index .Spec.Endpoint.Ports 0 }}",
        "?extraConfig": "{{ .Spec.ExtraConfig }}",
        "?deep": "{{ .Spec.ExtraConfig.Level }}",
        "?kept": "without a value",
    });

    assert_eq!(
        rendered(&template),
        json!({"port": 51840, "type": "is LoadBalancer", "?kept": "without a value"})
    );
    assert!(refused(&json!({"?port": 1})).starts_with("?port: a key with a question mark"));
    let twice = json!({"?port": "{{ .Spec.MTU }}", "port": 1});
    assert!(refused(&twice).contains("leave one of them out"));
    let unknown = json!({"?extraConfig": "{{ .Spce.ExtraConfig }}"});
    assert!(refused(&unknown).contains("there is no \"Spce\"; there is Name"));
    assert!(refused(&json!({"a": "{{ .Spec.ExtraConfig }}"})).contains("no \"ExtraConfig\""));
}

#[test]
fn an_element_of_a_list_may_be_named() {
    let template = json!("{{ index .Spec.Endpoint.Ports 1 }}");
    let ports = |ports: &[u16]| json!({"endpoint": {"ports": ports}});

    assert_eq!(with(&ports(&[1, 2]), |data| render(&template, data)), Ok(json!(2)));
    let error = with(&ports(&[1]), |data| render(&template, data)).unwrap_err();
    assert!(error.to_string().contains("the list has no element 1"), "{error}");
}

#[test]
fn an_error_has_the_expression_and_its_place() {
    let at = |text: &str| refused(&json!({"spec": {"ports": [{"port": text}]}}));

    for (text, part) in [
        ("{{ if .Name }}a{{ end }}", "\"{{ if .Name }}\" is more than can be rendered here"),
        ("a{{ .Name | quote }}", "\"{{ .Name | quote }}\" is more than"),
        ("{{- .Name }}", "\"{{- .Name }}\" is more than"),
        ("{{ .Spec. }}", "\"{{ .Spec. }}\" is more than"),
        ("{{ }}", "\"{{ }}\" is more than"),
        ("{{ . }}", "\"{{ . }}\" is more than"),
        ("{{ index .Spec.Endpoint.Ports -1 }}", "is more than"),
        ("{{ .Nmae }}", "there is no \"Nmae\"; there is Name, Namespace, GatewayUID"),
        ("{{ .Spec.Endpoint.Prt }}", "\"{{ .Spec.Endpoint.Prt }}\": there is no \"Prt\""),
        ("{{ .Name.Length }}", "there is no \"Length\""),
        ("{{ .Spec.Endpoint }}", "is a list or a map"),
        ("{{ .Name", "\"{{ .Name\" has no end"),
    ] {
        let error = at(text);
        assert!(error.starts_with("spec.ports[0].port: "), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn shipped_templates_can_be_rendered() {
    for text in [
        include_str!("../../../../deploy/liqo/server.yaml"),
        include_str!("../../../../deploy/liqo/client.yaml"),
        include_str!("../../../../deploy/liqo/server-whole.yaml"),
        include_str!("../../../../deploy/liqo/client-whole.yaml"),
    ] {
        let object: Value = serde_saphyr::from_str(text).unwrap();
        let template = &object["spec"]["template"];
        let spec = json!({
            "mtu": 1340,
            "endpoint": {"port": 51840, "addresses": ["198.51.100.3"], "serviceType": "NodePort"},
            "secretRef": {"name": "keys"},
        });
        let schema = match object["kind"].as_str() {
            Some("WgGatewayClientTemplate") => spec_schema::<GatewayClient>(),
            _ => spec_schema::<GatewayServer>(),
        };
        let data = Data::new(&identity(), &spec, &schema, "keys");

        let rendered = render(template, &data).unwrap();
        assert!(!rendered.to_string().contains("{{"), "{rendered}");
        assert_eq!(rendered["metadata"]["name"], "server");
    }
}

fn any_template() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[ {}.a-z?]{0,12}",
        Just("{{ .Name }}".to_owned()),
        Just("{{ .Spec.MTU }}".to_owned()),
        Just("{{ index .Spec.Endpoint.Ports 0 }}".to_owned()),
        "\\{\\{ [.a-zA-Z0-9 |]{0,12} \\}\\}",
    ];
    let leaf = prop_oneof![
        text.prop_map(Value::String),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::btree_map("(\\?)?[a-c]|labels", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// For any template: an object without expressions, or an error. A rendered object renders to itself, except for
    /// optional keys without an expression.
    #[test]
    fn rendering_is_complete_or_fails(template in any_template()) {
        let outcome = with(&spec(), |data| render(&template, data));

        if let Ok(rendered) = outcome {
            let text = rendered.to_string();
            prop_assert!(!text.contains("{{"), "{text}");
            let again = with(&spec(), |data| render(&rendered, data));
            prop_assert_eq!(again, Ok(rendered));
        }
    }
}

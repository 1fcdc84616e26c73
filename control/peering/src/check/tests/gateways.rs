//! Findings about gateways.

use super::*;

#[test]
fn a_server_without_a_load_balancer_is_reported() {
    let service =
        |type_: &str| object(json!({"metadata": {"name": "gw-milan"}, "spec": {"type": type_}}));
    let mut server = gateway(Mode::Server);
    server.template_ref = Some(["Other", "liqo", "server"].map(str::to_owned));
    server.template = Visibility::Hidden;
    server.object["status"] = json!({});

    for (service, object, reason) in [
        (
            Visibility::Found(service("LoadBalancer")),
            "Service tenant/gw-milan",
            "LoadBalancerPending",
        ),
        (Visibility::Found(service("NodePort")), "GatewayServer tenant/milan", "NoEndpoint"),
        (Visibility::Missing, "GatewayServer tenant/milan", "NoEndpoint"),
        // The missing address is reported already.
        (Visibility::Hidden, "GatewayServer tenant/milan", "NoEndpoint"),
    ] {
        server.service = service;
        assert_eq!(reasons(&gateway::findings(&server, public_of)), [(object, reason)]);
    }
}

#[test]
fn two_gateways_in_one_namespace_are_reported() {
    let mut facts = sound();
    let other = GatewayFacts { remote: None, ..gateway(Mode::Server) };
    facts.gateways.push(other);

    let found = peering::findings(&facts);

    assert_eq!(reasons(&found), [("Namespace tenant", "SharedNamespace")]);
}

/// A gateway with this index beside those of `facts`, with its objects.
fn add(facts: &mut Facts, index: u8) {
    let name = format!("milan-{index}");
    let owners = json!([{
        "apiVersion": "networking.liqo.io/v1beta1", "kind": "GatewayClient", "name": name,
        "uid": name,
    }]);
    let mut added = gateway(Mode::Client);
    added.object["metadata"] = json!({"name": name, "namespace": "tenant", "uid": name});
    added.index = Ok(index);
    facts.gateways.push(GatewayFacts { name: name.clone(), ..added });
    all(&mut facts.public_keys).push(object(json!({
        "metadata": {
            "name": name, "namespace": "tenant", "ownerReferences": owners,
            "labels": {"liqo.io/remote-cluster-id": "milan"},
        },
        "spec": {"publicKey": key(index)},
    })));
    all(&mut facts.connections).push(object(json!({
        "metadata": {"name": format!("gw-{name}"), "namespace": "tenant"},
        "spec": {"gatewayRef": {}, "type": "Client"}, "status": {"value": "Connected"},
    })));
}

#[test]
fn numbered_gateways_share_a_namespace() {
    let mut facts = sound();
    add(&mut facts, 1);
    add(&mut facts, 2);
    assert_eq!(found(&facts), []);

    type Change = fn(&mut GatewayFacts);
    let changes: [Change; 3] = [
        |it| it.index = Ok(1),
        |it| it.remote = Some("oslo".to_owned()),
        |it| it.mode = Mode::Server,
    ];
    for (place, change) in changes.into_iter().enumerate() {
        let mut gateways = facts.gateways.clone();
        change(&mut gateways[2]);
        let facts = Facts { gateways, ..hidden() };
        let found = peering::findings(&facts);
        assert_eq!(reasons(&found), [("Namespace tenant", "SharedNamespace")], "{place}");
    }
}

#[test]
fn each_gateway_has_its_own_key_and_connection() {
    let mut facts = sound();
    add(&mut facts, 1);
    let known = |facts: &Facts, place: usize| {
        let key = facts.gateways[place].key(facts, "milan")?;
        key.metadata.name.clone()
    };
    assert_eq!(known(&facts, 0).as_deref(), Some("milan"));
    assert_eq!(known(&facts, 1).as_deref(), Some("milan-1"));

    all(&mut facts.connections)[1].status.as_mut().unwrap().value = Some("Connecting".to_owned());
    let unconnected = found(&facts);
    assert_eq!(reasons(&unconnected), [("Connection tenant/gw-milan-1", "NotConnected")]);

    // The key of the second one is none for the first one.
    all(&mut facts.public_keys).remove(0);
    let without = found(&facts);
    assert!(reasons(&without).contains(&("GatewayClient tenant/milan", "PublicKeyMissing")));
    assert_eq!(known(&facts, 1).as_deref(), Some("milan-1"));
}

#[test]
fn a_wrong_index_is_reported() {
    let mut client = gateway(Mode::Client);
    client.index = Err("8".to_owned());

    let found = gateway::findings(&client, public_of);

    assert_eq!(reasons(&found), [("GatewayClient tenant/milan", "IndexInvalid")]);
    assert_eq!(found[0].message, "its label strait.io/gateway-index is \"8\"");
}

#[test]
fn a_hidden_gateway_is_not_reported_as_missing() {
    let milan = Facts { cluster_id: Some("milan".to_owned()), ..hidden() };
    let rome = || Facts { networks: None, ..sound() };

    let hiding = Facts { hides_gateways: true, ..hidden() };
    let hiding = Facts { cluster_id: Some("milan".to_owned()), ..hiding };
    assert_eq!(pair::findings(&rome(), &hiding), []);
    assert_eq!(pair::findings(&hiding, &rome()), []);
    assert_eq!(
        reasons(&pair::findings(&rome(), &milan)),
        [("GatewayClient tenant/milan", "NoCounterpart")]
    );
}

#[test]
fn an_event_explains_a_missing_gateway() {
    let cause = super::super::super::cause::Cause {
        kind: "GatewayClient".to_owned(),
        name: "milan".to_owned(),
        reason: "Refused".to_owned(),
        message: "cannot apply Deployment gw-milan: why".to_owned(),
    };
    let mut facts = sound();
    facts.gateways[0].cause = Some(cause);
    assert_eq!(found(&facts), [], "a solved problem is no finding");

    facts.gateways[0].deployment = Visibility::Missing;
    facts.gateways[0].secrets = Some(Vec::new());
    facts.connections = Some(Vec::new());
    let findings = Findings::new(found(&facts), &[]);

    let [finding] = &findings.findings[..] else { panic!("{findings}") };
    assert_eq!(finding.message, "Refused: cannot apply Deployment gw-milan: why");
    assert_eq!(
        findings.to_string(),
        "error    GatewayClient tenant/milan: WarningEvent: Refused: cannot apply Deployment gw-milan: why; \
         correct that; `kubectl describe gatewayclient milan -n tenant` shows the Event\n         therefore: \
         Connection tenant/gw-milan ConnectionMissing, Deployment tenant/gw-milan GatewayMissing, \
         GatewayClient tenant/milan NoKeys\n1 error, 0 warnings\n"
    );
}

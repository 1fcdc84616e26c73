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

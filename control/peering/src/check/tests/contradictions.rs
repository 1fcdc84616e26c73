//! Findings about two clusters that do not fit together.

use super::*;

#[test]
fn contradictions_of_two_clusters_are_reported() {
    let milan = || {
        let mut milan = sound();
        milan.cluster_id = Some("milan".to_owned());
        milan.gateways =
            vec![GatewayFacts { remote: Some("rome".to_owned()), ..gateway(Mode::Server) }];
        for labels in [
            &mut all(&mut milan.configurations)[0].metadata.labels,
            &mut all(&mut milan.public_keys)[0].metadata.labels,
        ] {
            *labels = Some([("liqo.io/remote-cluster-id".to_owned(), "rome".to_owned())].into());
        }
        milan
    };
    let rome = || {
        let mut rome = sound();
        // The key of Milan.
        all(&mut rome.public_keys)[0].spec.public_key = serde_json::from_value(key(7)).unwrap();
        rome
    };
    let mut fitting = milan();
    all(&mut fitting.public_keys)[0].spec.public_key = serde_json::from_value(key(7)).unwrap();
    assert_eq!(pair::findings(&rome(), &fitting), []);

    type Change = fn(&mut Facts, &mut Facts);
    let cases: [(Change, &str, &str); 8] = [
        (
            |rome, _| {
                let other =
                    GatewayFacts { namespace: "other".to_owned(), ..rome.gateways[0].clone() };
                rome.gateways.push(other);
            },
            "GatewayClient tenant/milan",
            "SeveralGateways",
        ),
        (
            |rome, milan| {
                rome.gateways.clear();
                let other =
                    GatewayFacts { namespace: "other".to_owned(), ..milan.gateways[0].clone() };
                milan.gateways.push(other);
            },
            "GatewayServer tenant/milan",
            "NoCounterpart",
        ),
        (
            |rome, _| rome.gateways[0].object["spec"]["mtu"] = json!(1400),
            "GatewayClient tenant/milan",
            "MTUDiffers",
        ),
        (|rome, _| rome.gateways[0].mode = Mode::Server, "GatewayServer tenant/milan", "SameEnd"),
        (|rome, _| rome.gateways.clear(), "GatewayServer tenant/milan", "NoCounterpart"),
        (
            |_, milan| all(&mut milan.networks)[0] = network("pod-cidr", "10.243.0.0/16", true),
            "Configuration tenant/milan",
            "PrefixesDiffer",
        ),
        (
            |rome, _| {
                rome.gateways[0].object["spec"]["endpoint"]["addresses"] = json!(["192.0.2.1"])
            },
            "GatewayClient tenant/milan",
            "EndpointDiffers",
        ),
        (
            |rome, _| {
                all(&mut rome.public_keys)[0].spec.public_key =
                    serde_json::from_value(key(9)).unwrap()
            },
            "PublicKey tenant/milan",
            "KeyDiffers",
        ),
    ];
    for (change, object, reason) in cases {
        let mut rome = rome();
        let mut milan = milan();
        all(&mut milan.public_keys)[0].spec.public_key = serde_json::from_value(key(7)).unwrap();
        change(&mut rome, &mut milan);

        let found = pair::findings(&rome, &milan);
        assert_eq!(reasons(&found), [(object, reason)], "{found:#?}");
    }
}

#[test]
fn gateways_are_compared_by_their_index() {
    let end = |mode: Mode, remote: &str, index: u8| GatewayFacts {
        name: format!("{remote}-{index}"),
        remote: Some(remote.to_owned()),
        index: Ok(index),
        ..gateway(mode)
    };
    let rome = |indexes: &[u8]| Facts {
        cluster_id: Some("rome".to_owned()),
        gateways: indexes.iter().map(|index| end(Mode::Client, "milan", *index)).collect(),
        ..hidden()
    };
    let milan = |indexes: &[u8]| Facts {
        cluster_id: Some("milan".to_owned()),
        gateways: indexes.iter().map(|index| end(Mode::Server, "rome", *index)).collect(),
        ..hidden()
    };

    assert_eq!(pair::findings(&rome(&[0, 1]), &milan(&[1, 0])), []);
    let tunnels = pair::tunnels(&rome(&[0, 1]), &milan(&[1, 0]));
    let names: Vec<_> = tunnels.iter().map(|it| it.each_ref().map(|it| &*it.name)).collect();
    assert_eq!(names, [["milan-0", "rome-0"], ["milan-1", "rome-1"]]);

    let found = pair::findings(&rome(&[0, 2]), &milan(&[0, 1]));
    let expected = ["GatewayServer tenant/rome-1", "GatewayClient tenant/milan-2"]
        .map(|it| (it, "NoCounterpart"));
    assert_eq!(reasons(&found), expected);
    assert_eq!(found[0].message, "cluster rome has no gateway for it, with the same index 1");
    assert_eq!(found[0].remedy, "`strait network connect --gateways 3` again, or delete it");
    assert_eq!((found[0].side, found[1].side), (Side::Remote, Side::Local));

    let mut different = milan(&[0, 1]);
    different.gateways[1].object["spec"]["mtu"] = json!(1400);
    let found = pair::findings(&rome(&[0, 1]), &different);
    assert_eq!(reasons(&found), [("GatewayClient tenant/milan-1", "MTUDiffers")]);
}

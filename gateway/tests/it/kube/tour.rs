//! The tour of the README: what an administrator asks and sees.
//!
//! Prints all of it: `cargo test -p strait-gateway --test it -- --nocapture kube::tour`.

use strait_lab::Layout;
use strait_lab::traffic::Ping;

use crate::harness::require::Need::{Root, Tun};
use crate::harness::require::require;
use crate::kube::fed::{Mode, NAMESPACE, wait_for_ping};
use crate::kube::peering::Peering;

#[test]
fn an_administrator_follows_the_tour_of_the_readme() {
    let Some(_turn) = require(&[Root, Tun]) else {
        return;
    };
    let Some(peering) = Peering::start(&Layout::equal(), Mode::Client) else {
        return;
    };
    let kubectl = |rest: &str| {
        let line = format!("kubectl --namespace={NAMESPACE} {rest}");
        let said = peering.in_rome.shell(&line);
        eprintln!("$ kubectl {rest}\n{said}");
        said
    };

    let said = peering.in_rome.shell("strait crds | kubectl apply --server-side --filename=-");
    eprintln!("$ strait crds | kubectl apply --server-side --filename=-\n{said}");
    assert!(said.contains("configurations.networking.liqo.io serverside-applied"), "{said}");

    let said = kubectl("get publickeies,configurations");
    assert!(said.contains("publickey.networking.liqo.io/milan"), "{said}");
    assert!(said.contains(" 10.71.0.0/16 "), "{said}");
    let said = kubectl("get connections --output=wide");
    assert!(said.contains("gw-milan") && said.contains("Connected"), "{said}");
    let in_force = "wait configuration/milan --timeout=30s --for=condition=strait.io/InForce";
    kubectl(in_force);
    wait_for_ping(&peering.rome().pod, peering.target());

    // A prefix that is none loses itself and nothing else.
    let pods = |cidrs: &str| {
        let patch = format!(r#"{{"spec":{{"remote":{{"cidr":{{"pod":[{cidrs}]}}}}}}}}"#);
        kubectl(&format!("patch configuration milan --type=merge --patch='{patch}'"));
    };
    pods(r#""10.244.0.0/16","10.9.0.1/16""#);
    kubectl(&format!("{in_force}=False"));
    let said = kubectl("events --for=configuration/milan");
    assert!(said.contains("RemoteCIDRInvalid"), "{said}");
    assert!(said.contains("write 10.9.0.0/16 or 10.9.0.1/32"), "{said}");
    let ping = Ping::new(peering.target(), 3).run(&peering.rome().pod).unwrap();
    assert!(ping.is_perfect(), "{ping:?}");

    pods(r#""10.244.0.0/16""#);
    kubectl(in_force);

    peering.finish();
}

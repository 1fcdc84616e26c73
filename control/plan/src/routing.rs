//! The rules and routes of a `RouteConfiguration`, read. Pure.
//!
//! Liqo's controllers write policy routing: each object is one table of routes, with the rules that lead to it. They
//! say which node of the cluster an address is behind, and that the rest of the remote prefixes is behind the tunnel.
//!
//! # Not here
//!
//! Executing them (see [`crate::lowering`]). An object is read whole or not at all.

use std::net::IpAddr;

use remap::Prefix;
use strait_api::RouteConfiguration;
use strait_api::route_configuration as api;

/// A rule, and the routes that apply to the packets it selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Lower ones come first; `None`: after all that have one.
    pub priority: Option<u32>,
    /// The prefix of the source.
    pub source: Option<Prefix>,
    /// The prefix of the destination.
    pub destination: Option<Prefix>,
    /// The mark of the packet.
    pub mark: Option<u32>,
    /// The input interface.
    pub input: Option<String>,
    /// The output interface.
    pub output: Option<String>,
    /// The routes; the longest prefix that covers the destination applies.
    pub routes: Vec<Route>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub destination: Prefix,
    /// The next hop; `None`: the destination is on the link.
    pub next_hop: Option<IpAddr>,
    /// The output interface.
    pub device: Option<String>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// Whether it was written for a pod.
    pub is_for_pod: bool,
}

/// A value that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rules[{rule}]: {field} is {value:?}, which is no valid value")]
pub struct Invalid {
    /// The number of the rule, from 0.
    pub rule: usize,
    /// The path of the field in the rule.
    pub field: &'static str,
    /// The value.
    pub value: String,
}

/// The rules of `object`, in its order.
///
/// # Errors
///
/// The first value that is not understood.
pub fn rules(object: &RouteConfiguration) -> Result<Vec<Rule>, Invalid> {
    let rules = object.spec.table.iter().flat_map(|table| &table.rules).enumerate();
    let read = |(number, rule)| {
        self::rule(rule).map_err(|(field, value)| Invalid { rule: number, field, value })
    };

    rules.map(read).collect()
}

type Field = (&'static str, String);

fn rule(rule: &api::RouteRule) -> Result<Rule, Field> {
    let number = |field: &'static str, number: Option<i64>| {
        let read = |number: i64| u32::try_from(number).map_err(|_| (field, number.to_string()));
        number.map(read).transpose()
    };

    Ok(Rule {
        priority: number("priority", rule.priority)?,
        source: parsed("src", rule.src.as_deref())?,
        destination: parsed("dst", rule.dst.as_deref())?,
        mark: number("fwmark", rule.fwmark)?,
        input: rule.iif.clone(),
        output: rule.oif.clone(),
        routes: rule.routes.iter().map(route).collect::<Result<_, _>>()?,
    })
}

fn route(route: &api::Route) -> Result<Route, Field> {
    let destination = parsed("routes.dst", Some(&route.dst))?;

    Ok(Route {
        destination: destination.ok_or_else(|| ("routes.dst", route.dst.clone()))?,
        next_hop: parsed("routes.gw", route.gw.as_deref())?,
        device: route.dev.clone(),
        source: parsed("routes.src", route.src.as_deref())?,
        is_for_pod: route.target_ref.as_ref().is_some_and(|it| it.kind.as_deref() == Some("Pod")),
    })
}

/// The value of a field; an empty one is none.
fn parsed<T: std::str::FromStr>(
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<T>, Field> {
    let text = text.filter(|text| !text.is_empty());
    let read = |text: &str| text.parse().map_err(|_| (field, text.to_owned()));

    text.map(read).transpose()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn genuine() -> Vec<RouteConfiguration> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/genuine");
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let lists = files.map(|path| -> Value {
            serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        });
        let objects = lists.flat_map(|list| list["items"].as_array().cloned().expect("a list"));

        objects
            .filter(|object| object["kind"] == "RouteConfiguration")
            .map(|object| serde_json::from_value(object).expect("an object"))
            .collect()
    }

    #[test]
    fn every_route_that_liqo_wrote_is_read() {
        let objects = genuine();
        assert!(objects.len() > 20, "{}", objects.len());

        let read: Vec<_> =
            objects.iter().flat_map(|object| rules(object).expect("it is understood")).collect();

        let route = |text: &str, next_hop: &str| Route {
            destination: text.parse().unwrap(),
            next_hop: Some(next_hop.parse().unwrap()),
            device: None,
            source: None,
            is_for_pod: false,
        };
        // From the nodes to the tunnel, and from the tunnel to a node.
        let outbound = |rule: &Rule| {
            let is_ours = rule.routes == [route("10.244.0.0/16", "169.254.18.2")];
            is_ours && rule.input.as_deref().is_some_and(|input| input.starts_with("liqo."))
        };
        assert!(read.iter().any(outbound));
        let inbound = |rule: &Rule| {
            let to_node = |route: &Route| route.next_hop == Some([10, 80, 0, 1].into());
            rule.input.as_deref() == Some("liqo-tunnel") && rule.routes.iter().any(to_node)
        };
        assert!(read.iter().any(inbound));
        assert!(read.iter().any(|rule| rule.mark == Some(2)));
        assert!(read.iter().all(|rule| !rule.routes.is_empty()));
    }

    #[test]
    fn an_invalid_value_is_named() {
        let read = |rule: Value| {
            let object = json!({
                "apiVersion": "networking.liqo.io/v1beta1", "kind": "RouteConfiguration",
                "metadata": {"name": "a"}, "spec": {"table": {"name": "t", "rules": [rule]}},
            });
            rules(&serde_json::from_value(object).unwrap()).unwrap_err().to_string()
        };
        let route = |route: Value| json!({"routes": [route]});

        assert_eq!(
            read(json!({"dst": "10.0.0.1/8", "routes": []})),
            "rules[0]: dst is \"10.0.0.1/8\", which is no valid value"
        );
        assert!(read(json!({"fwmark": -1, "routes": []})).contains("fwmark is \"-1\""));
        assert!(read(route(json!({"dst": "pods"}))).contains("routes.dst is \"pods\""));
        assert!(read(route(json!({"dst": ""}))).contains("routes.dst is \"\""));
        let gateway = route(json!({"dst": "10.0.0.0/8", "gw": "10.80.0.0/16"}));
        assert!(read(gateway).contains("routes.gw is \"10.80.0.0/16\""));
    }
}

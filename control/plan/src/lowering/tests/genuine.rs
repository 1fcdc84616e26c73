//! Lowers every object that Liqo's controllers wrote (`control/api/tests/genuine`).

use std::fs;
use std::path::Path;

use strait_api::Configuration;

use super::*;
use crate::objects;

/// The objects of one cluster.
struct World {
    name: String,
    items: Vec<Value>,
}

fn genuine() -> Vec<World> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/tests/genuine");
    let worlds = fs::read_dir(folder).unwrap().map(|file| {
        let path = file.unwrap().path();
        let list: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        World {
            name: path.display().to_string(),
            items: list["items"].as_array().cloned().expect("a list"),
        }
    });

    worlds.collect()
}

impl World {
    fn of_kind<K: DeserializeOwned>(&self, kind: &str) -> Vec<K> {
        let of_kind = self.items.iter().filter(|item| item["kind"] == kind);

        of_kind.map(|item| serde_json::from_value(item.clone()).expect("an object")).collect()
    }

    fn objects(&self) -> Objects {
        Objects {
            firewall_configurations: self
                .of_kind("FirewallConfiguration")
                .into_iter()
                .map(listed)
                .collect(),
            route_configurations: self
                .of_kind("RouteConfiguration")
                .into_iter()
                .map(listed)
                .collect(),
        }
    }

    fn configuration(&self) -> Configuration {
        self.of_kind("Configuration").remove(0)
    }

    fn scope(&self) -> Scope {
        let id = self.configuration().metadata.labels.expect("labels")["liqo.io/remote-cluster-id"]
            .clone();
        let is_server = id == "rome";

        Scope {
            node_name: Some(format!("{}-n1", if is_server { "milan" } else { "rome" })),
            remote_cluster_id: id,
            peer_address: ip(if is_server { "169.254.18.2" } else { "169.254.18.1" }),
            tracks_flows: true,
        }
    }
}

#[test]
fn every_genuine_object_is_lowered_to_lookups() {
    let worlds = genuine();
    assert!(worlds.len() >= 4);

    for world in worlds {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let name = &world.name;
        let problems: Vec<_> =
            lowered.outcomes.iter().filter(|outcome| outcome.problem.is_some()).collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        // Three of the fabric are for nodes alone: masquerade-bypass, the routes of nodes, and those of another node.
        assert!(lowered.outcomes.len() >= 11, "{name}: {}", lowered.outcomes.len());
        assert!(lowered.ruleset.is_empty(), "{name}: {:?}", lowered.ruleset);
        assert_eq!(lowered.clamp, Clamp { to_route: true, to: None }, "{name}");
        assert!(lowered.nodes.len() >= 2, "{name}: {:?}", lowered.nodes);
    }
}

#[test]
fn genuine_objects_remap_as_their_configuration() {
    for world in genuine() {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let configuration = world.configuration();
        let parsed = objects::parse(&configuration);
        let mut expected: Vec<Rule> = Vec::new();
        for pair in parsed.pairs {
            if let objects::Name::Remapped(rule) = pair.name {
                expected.push(rule);
            }
        }
        let sorted = |mut rules: Vec<Rule>| {
            rules.sort();
            rules
        };
        assert!(!expected.is_empty(), "{}", world.name);
        let remotes: BTreeSet<_> = expected.iter().map(Rule::remote).collect();
        assert_eq!(lowered.remotes, Vec::from_iter(remotes), "{}", world.name);
        assert_eq!(sorted(lowered.remaps), sorted(expected), "{}", world.name);
    }
}

#[test]
fn genuine_objects_route_to_a_pods_node() {
    for world in genuine() {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let mut pods = 0;
        for object in world.of_kind::<RouteConfiguration>("RouteConfiguration") {
            let name = object.metadata.name.clone().unwrap_or_default();
            for rule in routing::rules(&object).unwrap() {
                for route in rule.routes.iter().filter(|route| route.is_for_pod) {
                    let node = lowered.node_routes.node(route.destination.network(), 0).unwrap();
                    let node = &lowered.nodes[usize::try_from(node.0).unwrap()];
                    assert_eq!(Some(node.address), route.next_hop, "{name}");
                    pods += 1;
                }
            }
        }
        assert!(pods > 3, "{}: {pods}", world.name);
    }
}

#[test]
fn replies_to_unknown_sources_find_the_node() {
    for world in genuine() {
        let lowered = Lowered::new(&world.scope(), &world.objects());

        let unknown = ip("10.70.0.0");
        let mut marks = BTreeSet::new();
        for (number, _) in lowered.nodes.iter().enumerate() {
            let node = NodeId(u32::try_from(number).unwrap());
            let mark = lowered.mark(unknown, node).expect("every node has a mark");
            assert_eq!(lowered.node_routes.node(unknown, mark), Some(node), "{}", world.name);
            assert_eq!(lowered.mark(ip("10.70.0.9"), node), None);
            marks.insert(mark);
        }
        assert_eq!(marks.len(), lowered.nodes.len());
        assert_eq!(lowered.node_routes.node(unknown, 0), None);
    }
}

#[test]
fn the_order_of_objects_has_no_effect() {
    for world in genuine() {
        let objects = world.objects();
        let mut reversed = objects.clone();
        reversed.firewall_configurations.reverse();
        reversed.route_configurations.reverse();
        let lower = |objects: &Objects| {
            let lowered = Lowered::new(&world.scope(), objects);
            let Lowered { nodes, remotes, remaps, cluster, unknown_sources, outcomes, .. } =
                lowered;
            (nodes, remotes, remaps, cluster, unknown_sources, outcomes)
        };

        assert_eq!(lower(&objects), lower(&reversed), "{}", world.name);
    }
}

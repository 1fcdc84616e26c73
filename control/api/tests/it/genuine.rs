//! Objects that the controllers of Liqo wrote (`tests/genuine`, one file for each cluster of a run): the types read each
//! of them without loss.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strait_api::{
    Configuration, Connection, FirewallConfiguration, IP, Network, RouteConfiguration,
};

#[test]
fn objects_of_liqo_are_read_without_loss() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/genuine");
    let mut count = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let list: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for object in list["items"].as_array().expect("a list") {
            let name = format!("{}: {}", path.display(), object["metadata"]["name"]);
            assert_eq!(again(object), *object, "{name}");
            count += 1;
        }
    }

    assert!(count > 100, "{count} objects");
}

/// The object as its type writes it after it has read it.
fn again(object: &Value) -> Value {
    match object["kind"].as_str().expect("a kind") {
        "Configuration" => through::<Configuration>(object),
        "Connection" => through::<Connection>(object),
        "FirewallConfiguration" => through::<FirewallConfiguration>(object),
        "IP" => through::<IP>(object),
        "Network" => through::<Network>(object),
        "RouteConfiguration" => through::<RouteConfiguration>(object),
        kind => panic!("{kind}: no type is tried"),
    }
}

fn through<K: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let read: K = serde_json::from_value(object.clone()).expect("it can be read");

    serde_json::to_value(read).expect("JSON")
}

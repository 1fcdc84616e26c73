//! The conditions and Events of a gateway, with its shipped role and with Liqo's.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::DeserializeGuard;
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde_json::{Value, json};
use strait_api::labels::REMOTE_CLUSTER_ID;
use strait_api::{Configuration, Connection, PublicKey};
use strait_control_lab::roles::{no_rights, shipped_role, stock_role};
use strait_control_lab::tenant::{NAMESPACE, Tenant, identity};
use strait_daemon::cluster::connection::Connections;
use strait_daemon::cluster::status_reporter::{Round, StatusReporter};
use strait_plan::Desired;
use strait_plan::conditions::{IN_FORCE, Verdict};
use strait_plan::conncheck::State;
use strait_plan::objects::{self, Objects, Scope};

/// One cluster and the gateway in it.
struct World {
    tenant: Tenant,
    reporter: StatusReporter,
}

impl World {
    /// `None` if no API server can run here.
    async fn new(role: &ClusterRole) -> Option<Self> {
        let tenant = Tenant::start(role).await?;
        let reporter = StatusReporter::new(&tenant.gateway, identity(), Timestamp::now());

        Some(Self { tenant, reporter })
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.tenant.admin.clone(), NAMESPACE)
    }

    /// Creates or changes an object of the remote cluster, its status as well.
    async fn put<K>(&self, name: &str, mut object: Value)
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.tenant.admin.clone(), NAMESPACE, &resource);
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"] = json!({"name": name, "labels": {REMOTE_CLUSTER_ID: "milan"}});
        let parameters = PatchParams::apply("liqo-controller-manager").force();
        api.patch(name, &parameters, &Patch::Apply(&object)).await.expect("an object");
        if object.get("status").is_some() {
            api.patch_status(name, &parameters, &Patch::Apply(&object)).await.expect("a status");
        }
    }

    /// Sets another schema for `spec` or `status` of configurations. It takes a moment to take effect.
    async fn define(&self, part: &str, schema: &Value) {
        let api: Api<CustomResourceDefinition> = Api::all(self.tenant.admin.clone());
        let name = Configuration::crd_name();
        let path = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{part}");
        let patch = json!([{"op": "replace", "path": path, "value": schema}]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch).expect("a patch"));
        api.patch(name, &PatchParams::default(), &patch).await.expect("a definition");
    }

    /// One round of the gateway, with the present objects.
    async fn round(&mut self, connection: Option<State>) -> Round {
        let verdicts = self.verdicts().await;

        self.reporter.round(&verdicts, connection, Timestamp::now()).await.expect("an answer")
    }

    /// The verdicts on the present objects.
    async fn verdicts(&self) -> Vec<Verdict> {
        let scope = Scope { remote_cluster_id: Some("milan".to_owned()), ..Scope::default() };
        let found = Objects {
            public_keys: list::<PublicKey>(&self.tenant.admin).await,
            configurations: list::<Configuration>(&self.tenant.admin).await,
        };

        Desired::new(&scope, &found).verdicts
    }

    async fn condition(&self) -> Option<Value> {
        let configuration = self.api::<Configuration>().get("milan").await.expect("it");
        let conditions = configuration.status.unwrap_or_default().conditions;
        let ours = conditions.into_iter().find(|condition| condition.type_ == IN_FORCE)?;

        serde_json::to_value(ours).ok()
    }

    /// Kind, name, type, reason and count of every Event, in order.
    async fn events(&self) -> Vec<String> {
        let events = self.api::<Event>().list(&Default::default()).await.expect("Events");
        let mut lines: Vec<_> = events.iter().map(line).collect();
        lines.sort();

        lines
    }
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(60), holds).await.expect("it holds in time");
}

fn line(event: &Event) -> String {
    let object = &event.involved_object;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();

    format!(
        "{} {}: {} {} x{}",
        text(&object.kind),
        text(&object.name),
        text(&event.type_),
        text(&event.reason),
        event.count.unwrap_or_default(),
    )
}

async fn list<K>(client: &Client) -> Vec<objects::Listed<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<DeserializeGuard<K>> = Api::namespaced(client.clone(), NAMESPACE);
    let list = api.list(&Default::default()).await.expect("a list");

    list.items.into_iter().map(Into::into).collect()
}

fn key(byte: u8, bytes: usize) -> Value {
    json!({"spec": {"publicKey": k8s_openapi::ByteString(vec![byte; bytes])}})
}

/// The pods of a remote cluster, as Liqo's manager writes them.
fn configuration(remote: &[&str], local: &[&str]) -> Value {
    json!({
        "spec": {"remote": {"cidr": {"pod": remote}}},
        "status": {
            "remote": {"cidr": {"pod": local}},
            "conditions": [{
                "type": "NetworkCIDRsConfigured",
                "status": "True",
                "reason": "NetworkCIDRsConfigured",
                "message": "All network CIDRs are configured",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
                "observedGeneration": 1,
            }],
        },
    })
}

#[tokio::test]
async fn a_configuration_reports_its_outcome() {
    let Some(mut world) = World::new(&shipped_role()).await else { return };
    world.put::<PublicKey>("milan", key(7, 32)).await;
    let wrong = configuration(&["10.244.0.0/16", "10.9.0.1/16"], &["10.71.0.0/16", "10.72.0.0/16"]);
    world.put::<Configuration>("milan", wrong).await;

    assert_eq!(world.round(None).await, Round::default());
    let refused = world.condition().await.expect("a condition");
    let expected = json!({
        "type": "strait.io/InForce",
        "status": "False",
        "reason": "RemoteCIDRInvalid",
        "message": "spec.remote.cidr.pod[1]: 10.9.0.1/16 has host bits set: write 10.9.0.0/16 or 10.9.0.1/32",
        "observedGeneration": 1,
        "lastTransitionTime": refused["lastTransitionTime"],
    });
    assert_eq!(refused, expected);
    eprintln!("{}", serde_saphyr::to_string(&refused).expect("YAML"));

    // Nothing has changed: nothing is written.
    let api = world.api::<Configuration>();
    let before = api.get("milan").await.unwrap();
    world.round(None).await;
    assert_eq!(api.get("milan").await.unwrap().resource_version(), before.resource_version());

    // Liqo's manager applies all of its fields again, without ours.
    let mended =
        configuration(&["10.244.0.0/16", "10.9.0.0/16"], &["10.71.0.0/16", "10.72.0.0/16"]);
    world.put::<Configuration>("milan", mended.clone()).await;
    world.round(None).await;
    let in_force = world.condition().await.expect("a condition");
    assert_eq!((&in_force["status"], &in_force["reason"]), (&json!("True"), &json!("InForce")));
    assert_eq!(in_force["observedGeneration"], 2);
    let conditions = api.get("milan").await.unwrap().status.unwrap().conditions;
    let theirs = conditions.iter().find(|other| other.type_ == "NetworkCIDRsConfigured");
    let theirs = serde_json::to_value(theirs).unwrap();
    assert_eq!(theirs, mended["status"]["conditions"][0]);
    assert_eq!(conditions.len(), 2);

    // The same problem again is the same Event again.
    let local = configuration(&["10.244.0.0/16", "10.9.0.1/16"], &["10.71.0.0/16", "10.72.0.0/16"]);
    world.put::<Configuration>("milan", local).await;
    world.round(None).await;
    assert_eq!(
        world.events().await,
        [
            "Configuration milan: Normal InForce x1",
            "Configuration milan: Warning RemoteCIDRInvalid x2",
        ]
    );

    // A gateway that restarts has nothing to report.
    world.reporter = StatusReporter::new(&world.tenant.gateway, identity(), Timestamp::now());
    world.round(None).await;
    assert_eq!(world.events().await.len(), 2);
    assert!(world.events().await[1].ends_with("x2"));
}

/// The other parts of the object stay in force.
#[tokio::test]
async fn a_refused_route_makes_the_condition_false() {
    let Some(mut world) = World::new(&shipped_role()).await else { return };
    world.put::<PublicKey>("milan", key(7, 32)).await;
    let good = configuration(&["10.9.0.0/16"], &["10.71.0.0/16"]);
    world.put::<Configuration>("milan", good).await;
    let summary = |condition: &Value| {
        ["status", "reason", "message"].map(|field| condition[field].as_str().unwrap().to_owned())
    };
    world.round(None).await;
    let in_force = world.condition().await.expect("a condition");

    let cause = "route fd00:71::/64: IPv6 is switched off";
    let refused = world.verdicts().await.into_iter().map(|verdict| {
        let is_it = verdict.is_about("Configuration", NAMESPACE, "milan");
        verdict.without_routes(is_it.then(|| cause.to_owned()).into_iter().collect())
    });
    let refused: Vec<_> = refused.collect();
    world.reporter.round(&refused, None, Timestamp::now()).await.expect("an answer");
    let condition = world.condition().await.expect("a condition");
    assert_eq!(summary(&condition), ["False", "RouteRefused", cause]);

    // The route is possible again.
    world.round(None).await;
    assert_eq!(summary(&world.condition().await.expect("a condition")), summary(&in_force));
}

/// Liqo's manager writes the whole list as well; neither loses the writes of the other.
#[tokio::test]
async fn two_writers_of_one_list_lose_nothing() {
    let Some(mut world) = World::new(&shipped_role()).await else { return };
    const WRITES: i64 = 60;
    world.put::<PublicKey>("milan", key(7, 32)).await;
    let good = configuration(&["10.9.0.0/16"], &["10.71.0.0/16"]);
    world.put::<Configuration>("milan", good).await;
    let api = world.api::<Configuration>();

    let manager = async {
        let mut written = 0;
        while written < WRITES {
            let mut found = api.get("milan").await.expect("it");
            let status = found.status.get_or_insert_default();
            let name = if written % 2 == 0 { "10.72.0.0/17" } else { "10.72.0.0/16" };
            let names = status.remote.as_mut().and_then(|remote| remote.cidr.as_mut());
            names.expect("names").pod = vec![name.to_owned()].into();
            let theirs = |condition: &&mut Condition| condition.type_ == "NetworkCIDRsConfigured";
            let theirs = status.conditions.iter_mut().find(theirs).expect("theirs");
            theirs.message = format!("write {written}");
            match api.replace_status("milan", &Default::default(), &found).await {
                Ok(_) => written += 1,
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let mut manager = std::pin::pin!(manager);
    loop {
        tokio::select! {
            biased;
            () = &mut manager => break,
            // The next round completes one that was cut off.
            _ = world.round(None) => {}
        }
    }
    world.round(None).await;

    let ours = world.condition().await.expect("ours");
    assert_eq!(ours["status"], "True");
    let conditions = api.get("milan").await.unwrap().status.unwrap().conditions;
    assert_eq!(conditions.len(), 2);
    assert!(conditions.iter().any(|theirs| theirs.message == format!("write {}", WRITES - 1)));
}

/// Another release of the API may admit what this one cannot read, or have no conditions.
#[tokio::test]
async fn other_definitions_of_the_api_are_supported() {
    let Some(mut world) = World::new(&shipped_role()).await else { return };
    let api = world.api::<Configuration>();
    let fields = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    world.define("spec", &fields).await;
    let unreadable = json!({"spec": {"remote": ["10.9.0.0/16"]}});
    let resource = ApiResource::erase::<Configuration>(&());
    let raw: Api<DynamicObject> =
        Api::namespaced_with(world.tenant.admin.clone(), NAMESPACE, &resource);
    let trial = PostParams { dry_run: true, ..PostParams::default() };
    let object = DynamicObject::new("milan", &resource).data(unreadable.clone());
    until(async || raw.create(&trial, &object).await.is_ok()).await;
    world.put::<Configuration>("milan", unreadable.clone()).await;

    world.round(None).await;
    let refused = raw.get("milan").await.unwrap();
    let condition = &refused.data["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("Malformed"))
    );
    assert_eq!(refused.data["spec"], unreadable["spec"]);
    world.round(None).await;
    assert_eq!(raw.get("milan").await.unwrap().resource_version(), refused.resource_version());

    let without_conditions = json!({"type": "object", "properties": {"remote": fields}});
    world.define("status", &without_conditions).await;
    let has_conditions =
        async || raw.get("milan").await.unwrap().data["status"]["conditions"].is_array();
    until(async || !has_conditions().await).await;
    world.put::<Configuration>("milan", json!({"spec": {"remote": {"cidr": {}}}})).await;
    let complaints = world.round(None).await.failures;
    let [failure] = &complaints[..] else { panic!("{complaints:?}") };
    assert!(failure.contains("definition of configurations has none"), "{failure}");
    let untouched = api.get("milan").await.unwrap();
    assert_eq!(world.round(None).await.failures, [""; 0]);
    assert_eq!(api.get("milan").await.unwrap().resource_version(), untouched.resource_version());
}

#[tokio::test]
async fn keys_and_the_connection_have_events() {
    let Some(mut world) = World::new(&shipped_role()).await else { return };
    world.put::<PublicKey>("milan", key(7, 31)).await;
    // There is no Connection yet.
    assert!(world.round(Some(State::Connected)).await.again.is_some());
    assert_eq!(world.events().await, ["PublicKey milan: Warning KeyLengthInvalid x1"]);

    Connections::new(world.tenant.gateway.clone(), identity()).ensure().await.unwrap();
    world.put::<PublicKey>("milan", key(7, 32)).await;
    for state in [State::Connected, State::Lost, State::Lost, State::Connected] {
        assert_eq!(world.round(Some(state)).await, Round::default());
    }
    assert_eq!(
        world.events().await,
        [
            "Connection gw-milan: Normal Connected x2",
            "Connection gw-milan: Warning Lost x1",
            "PublicKey milan: Normal InForce x1",
            "PublicKey milan: Warning KeyLengthInvalid x1",
        ]
    );
    let connection = world.api::<Connection>().get("gw-milan").await.unwrap();
    let events = world.api::<Event>().list(&Default::default()).await.unwrap();
    let lost = events.iter().find(|event| event.reason.as_deref() == Some("Lost")).expect("it");
    assert_eq!(lost.involved_object.uid, connection.uid());
}

/// A gateway with that role reads no `Configuration`; even so it could not write one.
#[tokio::test]
async fn with_liqos_role_one_failure_covers_conditions() {
    let Some(mut world) = World::new(&stock_role()).await else { return };
    world.put::<PublicKey>("milan", key(7, 31)).await;
    world.put::<Configuration>("milan", configuration(&["10.9.0.1/16"], &["10.71.0.0/16"])).await;
    world.put::<Configuration>("twin", configuration(&["10.9.0.1/16"], &["10.71.0.0/16"])).await;

    let first = world.round(None).await;
    let second = world.round(None).await;

    let [failure] = &first.failures[..] else { panic!("{first:?}") };
    assert!(failure.starts_with("conditions are not written"), "{failure}");
    assert!(failure.contains("forbidden"), "{failure}");
    assert_eq!(second.failures, [""; 0]);
    assert!(second.again.is_some());
    assert_eq!(world.condition().await, None);
    // Events are permitted.
    let events = world.events().await;
    assert!(
        events.contains(&"PublicKey milan: Warning KeyLengthInvalid x1".to_owned()),
        "{events:?}"
    );
}

#[tokio::test]
async fn without_rights_nothing_fails() {
    let Some(mut world) = World::new(&no_rights()).await else { return };
    world.put::<PublicKey>("milan", key(7, 31)).await;
    world.put::<Configuration>("milan", configuration(&["10.9.0.1/16"], &["10.71.0.0/16"])).await;

    assert_eq!(world.round(Some(State::Lost)).await.failures.len(), 2);
    assert_eq!(world.round(Some(State::Connected)).await.failures, [""; 0]);
    assert_eq!(world.events().await, [""; 0]);
}

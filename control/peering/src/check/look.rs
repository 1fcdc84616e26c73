//! What there is in a cluster, as far as whoever asks may see it.

mod asking;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret, Service};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::Value;
use strait_api::identity::Mode;
use strait_api::{Configuration, Connection, GatewayClient, GatewayServer, IP, Network, PublicKey};

use super::super::cause::Cause;
use super::super::contact::End;
use super::super::plan::OPERATOR;
use super::super::{CommandError, Contact, Prefixes, prefixes};
use super::Finding;
use super::api::Served;
use asking::{Looking, served};

/// The Lease of the operators.
pub(super) const LEASE: &str = "strait-operator";

/// Liqo's own operator.
const LIQO: &str = "liqo-controller-manager";

/// What there is under a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Sight<T> {
    /// This.
    There(T),
    /// Nothing.
    #[default]
    Missing,
    /// Nobody can say: it may not be seen, or cannot be read.
    Hidden,
}

impl<T> Sight<T> {
    /// It, if it can be seen.
    pub(super) const fn seen(&self) -> Option<&T> {
        match self {
            Self::There(it) => Some(it),
            Self::Missing | Self::Hidden => None,
        }
    }

    /// What `read` makes of it.
    fn and_then<U>(self, read: impl FnOnce(T) -> Sight<U>) -> Sight<U> {
        match self {
            Self::There(it) => read(it),
            Self::Missing => Sight::Missing,
            Self::Hidden => Sight::Hidden,
        }
    }
}

/// All of it. A list is `None` if it may not be seen, or if the API server does not know the kind.
#[derive(Default)]
pub(super) struct Facts {
    /// When that was.
    pub(super) now: Timestamp,
    /// Where Liqo or Strait is installed.
    pub(super) namespace: String,
    /// Which cluster it is, if anybody knows.
    pub(super) cluster_id: Option<String>,
    pub(super) served: Served,
    pub(super) operators: Option<Vec<Deployment>>,
    pub(super) liqo: Sight<Deployment>,
    pub(super) lease: Sight<Lease>,
    pub(super) networks: Option<Vec<Network>>,
    pub(super) ips: Option<Vec<IP>>,
    pub(super) configurations: Option<Vec<Configuration>>,
    pub(super) public_keys: Option<Vec<PublicKey>>,
    pub(super) connections: Option<Vec<Connection>>,
    pub(super) nodes: Option<Vec<Node>>,
    /// That of the API server.
    pub(super) api_service: Sight<Service>,
    /// Both ends, as far as they may be seen.
    pub(super) gateways: Vec<GatewayFacts>,
    /// Whether there may be others.
    pub(super) hides_gateways: bool,
    /// What may not be seen, or cannot be read.
    pub(super) blind: Vec<Finding>,
}

/// A gateway and what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct GatewayFacts {
    pub(super) mode: Mode,
    /// As the API server has it.
    pub(super) object: Value,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The cluster at the other end.
    pub(super) remote: Option<String>,
    /// Kind, namespace and name of its template, as it refers to it.
    pub(super) template_ref: Option<[String; 3]>,
    /// What that says. One of a kind that is not ours is left to its maker, and hidden.
    pub(super) template: Sight<Value>,
    pub(super) deployment: Sight<Deployment>,
    pub(super) service: Sight<Service>,
    /// The names of those; `None` if they may not be seen.
    pub(super) active_pods: Option<Vec<String>>,
    /// Those that may be its own; `None` if they may not be seen.
    pub(super) secrets: Option<Vec<Secret>>,
    /// What the last Warning says, as far as it may be seen.
    pub(super) cause: Option<Cause>,
}

impl Facts {
    /// Asks for everything.
    pub(super) async fn look(contact: &Contact, end: &End<'_>) -> Result<Self, CommandError> {
        let served = served(end).await?;
        let mut look = Looking { end, blind: Vec::new(), has_seen: false };
        let namespace = end.liqo_namespace.as_str();
        let cluster_id = look.cluster_id(contact).await?;
        let all = &ListParams::default();
        let operators = &ListParams::default().labels(OPERATOR);
        let scope = Some(end.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let here = Some(namespace);
        let mut facts = Self {
            now: Timestamp::now(),
            namespace: namespace.to_owned(),
            cluster_id,
            served,
            operators: look.list(here, operators).await?,
            liqo: look.get(here, LIQO).await?,
            lease: look.get(here, LEASE).await?,
            networks: look.list(None, all).await?,
            ips: look.list(None, all).await?,
            configurations: look.list(scope, all).await?,
            public_keys: look.list(scope, all).await?,
            connections: look.list(scope, all).await?,
            nodes: look.list(None, all).await?,
            api_service: look.get(Some("default"), "kubernetes").await?,
            gateways: Vec::new(),
            hides_gateways: false,
            blind: Vec::new(),
        };
        let servers = look.list::<GatewayServer>(scope, all).await?;
        let clients = look.list::<GatewayClient>(scope, all).await?;
        facts.hides_gateways = servers.is_none() || clients.is_none();
        for server in servers.iter().flatten() {
            facts.gateways.extend(look.gateway(Mode::Server, server).await?);
        }
        for client in clients.iter().flatten() {
            facts.gateways.extend(look.gateway(Mode::Client, client).await?);
        }
        if !look.has_seen {
            look.blind.push(Finding::error(
                "your account".to_owned(),
                "NothingSeen",
                "it may look at nothing, so nothing is known of this cluster".to_owned(),
                "ask for the right to read, or choose another context".to_owned(),
            ));
        }
        facts.blind = look.blind;

        Ok(facts)
    }

    /// What the cluster says of itself, if that makes sense.
    pub(super) fn prefixes(&self) -> Option<Prefixes> {
        prefixes::of_cluster(&self.own_networks()?, &self.namespace).ok()
    }

    /// Those of the installation, if they may be seen.
    pub(super) fn own_networks(&self) -> Option<Vec<Network>> {
        let all = self.networks.as_ref()?.iter();
        let own = all.filter(|network| network.namespace().as_deref() == Some(&self.namespace));

        Some(own.cloned().collect())
    }

    /// What makes gateways, if that is ours and nobody else does.
    pub(super) fn only_operator(&self) -> Option<&Deployment> {
        let operator = self.operators.as_ref()?.first()?;

        matches!(self.liqo, Sight::Missing).then_some(operator)
    }
}

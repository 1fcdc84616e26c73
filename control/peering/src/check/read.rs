//! The state of a cluster, as far as the user may read it.

mod requests;

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
use super::super::context::PeeringSide;
use super::super::plan::OPERATOR;
use super::super::{ClusterContext, CommandError, Prefixes, prefixes};
use super::Finding;
use super::api::Served;
use requests::{Reader, served};

/// The Lease of the operators.
pub(super) const LEASE: &str = "strait-operator";

/// Liqo's own operator.
const LIQO: &str = "liqo-controller-manager";

/// The result of reading an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Visibility<T> {
    /// It exists.
    Found(T),
    /// It does not exist.
    #[default]
    Missing,
    /// Unknown: it may not be read, or is invalid.
    Hidden,
}

impl<T> Visibility<T> {
    /// The object, if it was read.
    pub(super) const fn seen(&self) -> Option<&T> {
        match self {
            Self::Found(it) => Some(it),
            Self::Missing | Self::Hidden => None,
        }
    }

    /// Applies `read` to it.
    fn and_then<U>(self, read: impl FnOnce(T) -> Visibility<U>) -> Visibility<U> {
        match self {
            Self::Found(it) => read(it),
            Self::Missing => Visibility::Missing,
            Self::Hidden => Visibility::Hidden,
        }
    }
}

/// The state of a cluster. A list is `None` if it may not be read, or if the API server does not know the kind.
#[derive(Default)]
pub(super) struct Facts {
    /// When it was read.
    pub(super) now: Timestamp,
    /// The namespace in which Liqo or Strait is installed.
    pub(super) namespace: String,
    /// The cluster id, if it is known.
    pub(super) cluster_id: Option<String>,
    pub(super) served: Served,
    pub(super) operators: Option<Vec<Deployment>>,
    pub(super) liqo: Visibility<Deployment>,
    pub(super) lease: Visibility<Lease>,
    pub(super) networks: Option<Vec<Network>>,
    pub(super) ips: Option<Vec<IP>>,
    pub(super) configurations: Option<Vec<Configuration>>,
    pub(super) public_keys: Option<Vec<PublicKey>>,
    pub(super) connections: Option<Vec<Connection>>,
    pub(super) nodes: Option<Vec<Node>>,
    /// The Service of the API server.
    pub(super) api_service: Visibility<Service>,
    /// Servers and clients, as far as they may be read.
    pub(super) gateways: Vec<GatewayFacts>,
    /// Whether there may be others.
    pub(super) hides_gateways: bool,
    /// What may not be read, or is invalid.
    pub(super) unreadable: Vec<Finding>,
}

/// A gateway and its objects.
#[derive(Clone, Debug)]
pub(super) struct GatewayFacts {
    pub(super) mode: Mode,
    /// As the API server returned it.
    pub(super) object: Value,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The cluster at the other end.
    pub(super) remote: Option<String>,
    /// Its number among the gateways of the peering, or the invalid value of its label.
    pub(super) index: Result<u8, String>,
    /// Kind, namespace and name of its template, as it refers to it.
    pub(super) template_ref: Option<[String; 3]>,
    /// The spec of the template. One of another kind than ours is left to its maker, and hidden.
    pub(super) template: Visibility<Value>,
    pub(super) deployment: Visibility<Deployment>,
    pub(super) service: Visibility<Service>,
    /// The names of its active pods; `None` if they may not be read.
    pub(super) active_pods: Option<Vec<String>>,
    /// The Secrets that may be its own; `None` if they may not be read.
    pub(super) secrets: Option<Vec<Secret>>,
    /// The last Warning, as far as it may be read.
    pub(super) cause: Option<Cause>,
}

impl Facts {
    /// Reads everything.
    pub(super) async fn read(
        context: &ClusterContext,
        end: &PeeringSide<'_>,
    ) -> Result<Self, CommandError> {
        let served = served(end).await?;
        let mut reader = Reader { end, unreadable: Vec::new(), was_answered: false };
        let namespace = end.liqo_namespace.as_str();
        let cluster_id = reader.cluster_id(context).await?;
        let all = &ListParams::default();
        let operators = &ListParams::default().labels(OPERATOR);
        let scope = Some(end.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let here = Some(namespace);
        let mut facts = Self {
            now: Timestamp::now(),
            namespace: namespace.to_owned(),
            cluster_id,
            served,
            operators: reader.list(here, operators).await?,
            liqo: reader.get(here, LIQO).await?,
            lease: reader.get(here, LEASE).await?,
            networks: reader.list(None, all).await?,
            ips: reader.list(None, all).await?,
            configurations: reader.list(scope, all).await?,
            public_keys: reader.list(scope, all).await?,
            connections: reader.list(scope, all).await?,
            nodes: reader.list(None, all).await?,
            api_service: reader.get(Some("default"), "kubernetes").await?,
            gateways: Vec::new(),
            hides_gateways: false,
            unreadable: Vec::new(),
        };
        let servers = reader.list::<GatewayServer>(scope, all).await?;
        let clients = reader.list::<GatewayClient>(scope, all).await?;
        facts.hides_gateways = servers.is_none() || clients.is_none();
        for server in servers.iter().flatten() {
            facts.gateways.extend(reader.gateway(Mode::Server, server).await?);
        }
        for client in clients.iter().flatten() {
            facts.gateways.extend(reader.gateway(Mode::Client, client).await?);
        }
        if !reader.was_answered {
            reader.unreadable.push(Finding::error(
                "your account".to_owned(),
                "NothingSeen",
                "it may read nothing, so the state of this cluster is unknown".to_owned(),
                "ask for the right to read, or choose another context".to_owned(),
            ));
        }
        facts.unreadable = reader.unreadable;

        Ok(facts)
    }

    /// The prefixes of the cluster, if they are valid.
    pub(super) fn prefixes(&self) -> Option<Prefixes> {
        prefixes::of_cluster(&self.own_networks()?, &self.namespace).ok()
    }

    /// The networks of the installation, if they may be read.
    pub(super) fn own_networks(&self) -> Option<Vec<Network>> {
        let all = self.networks.as_ref()?.iter();
        let own = all.filter(|network| network.namespace().as_deref() == Some(&self.namespace));

        Some(own.cloned().collect())
    }

    /// The operator, if it is ours and Liqo's does not run.
    pub(super) fn only_operator(&self) -> Option<&Deployment> {
        let operator = self.operators.as_ref()?.first()?;

        matches!(self.liqo, Visibility::Missing).then_some(operator)
    }
}

//! `strait operator`: reconciles gateways while this replica is the leader.

mod pages;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use kube::Client;
use remap::Prefix;
use strait_daemon::election::{Candidacy, ElectionFlags};
use strait_host::flags::{Bind, bind_address};
use strait_host::http::Admin;
use strait_host::signals::{Signals, end_on_signal};
use strait_host::usage::UsageError;
use strait_ipam::Pools;
use strait_kube::client::{self, Part};
use strait_kube::election::{Election, Elector, Role};
use strait_operator::{KeyPair, ReconcileCounts, Settings, cluster_id};
use strait_wg::PrivateKey;
use strait_wg::key::KEY_LEN;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio::{join, select};
use tracing::info;

use pages::Pages;

/// The Lease that all replicas share.
const LEASE: &str = "strait-operator";

/// `strait operator`
#[derive(Debug, clap::Args)]
pub(crate) struct OperatorArgs {
    /// Namespace of the installation, with the Lease, the Networks of this cluster, and the journal of IPAM
    #[arg(long, env = "STRAIT_NAMESPACE", value_name = "NAMESPACE", default_value = "liqo")]
    namespace: String,
    /// Prefixes from which remapped prefixes of remote clusters are allocated, in order of preference
    #[arg(
        long,
        env = "STRAIT_POOLS",
        value_name = "PREFIX",
        value_delimiter = ',',
        default_value = "10.0.0.0/8,192.168.0.0/16,172.16.0.0/12,fd00::/8"
    )]
    pools: Vec<Prefix>,
    /// ClusterRole of the pods of gateway servers
    #[arg(
        long,
        env = "STRAIT_WG_GATEWAY_SERVER_CLUSTER_ROLE_NAME",
        value_name = "NAME",
        default_value = "strait-gateway"
    )]
    wg_gateway_server_cluster_role_name: String,
    /// ClusterRole of the pods of gateway clients
    #[arg(
        long,
        env = "STRAIT_WG_GATEWAY_CLIENT_CLUSTER_ROLE_NAME",
        value_name = "NAME",
        default_value = "strait-gateway"
    )]
    wg_gateway_client_cluster_role_name: String,
    /// Where to serve /metrics; 0 is off
    #[arg(
        long,
        env = "STRAIT_METRICS_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0",
        value_parser = bind_address
    )]
    metrics_address: Bind,
    /// Where to serve /healthz and /readyz; 0 is off
    #[arg(
        long,
        env = "STRAIT_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0",
        value_parser = bind_address
    )]
    health_probe_bind_address: Bind,
    #[command(flatten)]
    election: ElectionFlags,
}

/// Runs `strait operator` until a signal ends it.
///
/// # Errors
///
/// Wrong flags, ports that cannot be bound, or no API server is configured.
pub(crate) fn run(args: &OperatorArgs) -> anyhow::Result<ExitCode> {
    end_on_signal().context("cannot listen for signals")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let candidacy = args.election.candidacy(None)?;
    let pools = Pools::new(args.pools.clone())
        .map_err(|error| UsageError::Wrong(format!("--pools: {error}")))?;
    let client = runtime.block_on(client::infer(Part::Operator)).map_err(UsageError::wrong)?;
    let mut addresses = vec![args.metrics_address.0, args.health_probe_bind_address.0];
    addresses.dedup();
    let admins: Vec<_> =
        addresses.into_iter().flatten().map(Admin::bind).collect::<Result<_, _>>()?;

    let ipam = strait_ipam::Settings { pools, namespace: args.namespace.clone() };
    runtime.block_on(serve(args, candidacy, ipam, client, admins))?;

    Ok(ExitCode::SUCCESS)
}

async fn serve(
    args: &OperatorArgs,
    candidacy: Candidacy,
    ipam: strait_ipam::Settings,
    client: Client,
    admins: Vec<Admin>,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let settings = Settings {
        holder: candidacy.pod.clone(),
        server_role: args.wg_gateway_server_cluster_role_name.clone(),
        client_role: args.wg_gateway_client_cluster_role_name.clone(),
        generate_keys,
        public_of,
        counts: ReconcileCounts::default(),
    };
    let (standing, seen) = watch::channel(None);
    let pages = Arc::new(Pages::new(seen, settings.counts.clone()));
    for admin in admins {
        admin.serve(Arc::clone(&pages)).context("cannot serve the admin port")?;
    }
    info!(version = env!("CARGO_PKG_VERSION"), pod = candidacy.pod, "starting");
    if !args.election.leader_election.unwrap_or(true) {
        standing.send_replace(Some(true));
        select! {
            () = lead(&client, &settings, &ipam) => {}
            () = signals.end() => {}
        }
        return Ok(());
    }

    let Candidacy { settings: stand, times, .. } = candidacy;
    let election = Election::for_lease(client.clone(), &args.namespace, LEASE.to_owned(), stand);
    let mut campaign = Elector::new(election, times);
    let turns = async {
        let mut turns = standing.subscribe();
        while turns.wait_for(|standing| *standing == Some(true)).await.is_ok() {
            select! {
                () = lead(&client, &settings, &ipam) => {}
                _ = turns.wait_for(|standing| *standing != Some(true)) => {}
            }
        }
    };
    let stand = async {
        loop {
            let is_leader = campaign.round().await == Role::Leader;
            let now = campaign.was_answered().then_some(is_leader);
            standing.send_if_modified(|standing| std::mem::replace(standing, now) != now);
            sleep(times.retry_period).await;
        }
    };
    select! {
        () = turns => {}
        () = stand => {}
        () = signals.end() => {}
    }
    campaign.end().await;

    Ok(())
}

/// Sets the cluster id, and runs the controllers of gateways and IPAM. Does not return.
async fn lead(client: &Client, settings: &Settings, ipam: &strait_ipam::Settings) {
    let named = cluster_id::ensure(client.clone(), ipam.namespace.clone());
    select! {
        ((), ()) = async { join!(named, strait_operator::run(client.clone(), settings.clone())) } => {}
        _ = strait_ipam::run(client.clone(), ipam.clone()) => {}
    }
}

fn generate_keys() -> KeyPair {
    let private = PrivateKey::generate();
    let public = private.public_key();

    KeyPair { private: *private.to_bytes(), public: *public.as_bytes() }
}

/// The public key of `private`; for the zero key, which no gateway accepts, the zero key.
pub(crate) fn public_of(private: &[u8; KEY_LEN]) -> [u8; KEY_LEN] {
    PrivateKey::from_bytes(private).map_or([0; KEY_LEN], |key| *key.public_key().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_form_a_pair() {
        let [one, other] = [generate_keys(), generate_keys()];

        assert_eq!(public_of(&one.private), one.public);
        assert_ne!(public_of(&other.private), one.public);
        assert_eq!(public_of(&[0; KEY_LEN]), [0; KEY_LEN]);
    }
}

//! Selects clusters by kubeconfig and context.

use std::path::Path;

use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use strait_host::usage::UsageError;
use strait_kube::client::{Part, client};

use super::args::{ClustersArgs, ContextArgs, RemoteArgs};
use crate::{ClusterContext, Marks, Pair, Side};

/// The cluster of a command, with the named namespace or that of the context, as with kubectl.
pub(super) async fn cluster_context(args: &ContextArgs) -> Result<ClusterContext, UsageError> {
    let names = local(args);
    let config = names.config().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());

    Ok(ClusterContext {
        namespace: Some(namespace),
        ..of_local(args, names.client(config)?, Side::Only)
    })
}

/// Both clusters of a command, each in the namespace of the peering unless one is named.
pub(super) async fn pair(args: &ClustersArgs) -> Result<Pair, UsageError> {
    let ClustersArgs { context, remote, .. } = args;
    if !remote.is_named() {
        return Err(UsageError::Wrong(
            "the remote cluster is missing: name it with --remote-kubeconfig or --remote-context"
                .to_owned(),
        ));
    }

    both(context, remote).await
}

/// The clusters of both contexts, each in all namespaces unless one is named.
pub(super) async fn both(context: &ContextArgs, args: &RemoteArgs) -> Result<Pair, UsageError> {
    let local = local(context);
    let remote = Names {
        side: "remote-",
        file: args.remote_kubeconfig.as_deref(),
        context: args.remote_context.as_deref(),
    };
    let (of_here, of_remote) = (local.config().await?, remote.config().await?);

    Ok(Pair {
        local: of_local(context, local.client(of_here)?, Side::Local),
        remote: ClusterContext {
            client: remote.client(of_remote)?,
            side: Side::Remote,
            cluster_id: args.remote_cluster_id.clone(),
            namespace: args.remote_namespace.clone(),
            liqo_namespace: args.remote_liqo_namespace.clone(),
            marks: Marks::default(),
        },
    })
}

fn local(args: &ContextArgs) -> Names<'_> {
    Names { side: "", file: args.kubeconfig.as_deref(), context: args.context.as_deref() }
}

fn of_local(args: &ContextArgs, client: kube::Client, side: Side) -> ClusterContext {
    ClusterContext {
        client,
        side,
        cluster_id: args.cluster_id.clone(),
        namespace: args.namespace.clone(),
        liqo_namespace: args.liqo_namespace.clone(),
        marks: Marks::default(),
    }
}

/// The flags that select one cluster.
struct Names<'a> {
    /// The prefix of its flags.
    side: &'static str,
    file: Option<&'a Path>,
    context: Option<&'a str>,
}

impl Names<'_> {
    async fn config(&self) -> Result<Config, UsageError> {
        let options = KubeConfigOptions {
            context: self.context.map(str::to_owned),
            ..KubeConfigOptions::default()
        };
        let config = match (self.file, self.context) {
            (Some(file), _) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| self.wrong(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await,
            // As with kubectl: KUBECONFIG, the file in the home folder, or the pod this runs in.
            (None, None) => {
                return Config::infer().await.map_err(|error| {
                    UsageError::Wrong(format!(
                        "no API server is configured: pass --kubeconfig, or set KUBECONFIG ({error})"
                    ))
                });
            }
        };

        config.map_err(|error| self.wrong(&error))
    }

    fn client(&self, config: Config) -> Result<kube::Client, UsageError> {
        let url = config.cluster_url.to_string();

        client(config, Part::Command).map_err(|error| {
            UsageError::Wrong(format!("--{}kubeconfig: {url} cannot be called: {error}", self.side))
        })
    }

    fn wrong(&self, error: &KubeconfigError) -> UsageError {
        let side = self.side;
        let file = self.file.map(|file| file.display().to_string());
        let place = file.unwrap_or_else(|| "KUBECONFIG or ~/.kube/config".to_owned());
        let text = match (error, self.context) {
            (KubeconfigError::LoadContext(name), _) => {
                format!("--{side}context: there is no context {name:?} in {place}")
            }
            (error, Some(context)) => {
                format!("--{side}context {context:?} in {place}: {error}")
            }
            (error, None) => format!("--{side}kubeconfig {place}: {error}"),
        };

        UsageError::Wrong(text)
    }
}

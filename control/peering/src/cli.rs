//! The command line: `network`, `create`, `delete`, `generate`, `plan`, `info`, `status` and `check`.
//!
//! The verbs are implemented in the modules beside; this module has their flags, terminal output and exit codes.

mod args;
mod check;
mod colour;
mod kubeconfig;
mod plan;
mod requests;
mod table;
mod terminal;
mod typed;

use std::process::ExitCode;

use anyhow::Context as _;
use strait_api::identity::Mode;
use strait_api::public_key::PublicOf;
use strait_api::{Configuration, GatewayClient, GatewayServer, PublicKey};
use strait_host::usage::UsageError;

use crate::{
    ClusterContext, CommandError, CreateOptions, Format, Health, Pair, Report as _, Session, Side,
};

pub use typed::{TypedCheck, TypedCommand};

use self::args::{
    ContextArgs, CreateCommand, DeleteArgs, DeleteCommand, GatewayType, GenerateCommand, InfoArgs,
    InfoCommand, InfoPeerArgs, MarksArgs, NetworkCommand, ObjectArgs, OutputArgs, StatusArgs,
    UserCommand,
};
use self::terminal::Terminal;

/// A peering is unhealthy, or a check found errors.
const UNHEALTHY: u8 = 1;

/// Runs one of the commands.
///
/// # Errors
///
/// [`UsageError`] if the command line is wrong: then no cluster was changed. [`CommandError`] otherwise.
pub fn run(command: &TypedCommand, public_of: PublicOf) -> anyhow::Result<ExitCode> {
    let TypedCommand(command) = command;
    let terminal = Terminal::new(command.is_confirmed(), public_of);
    block_on(&terminal, execute(command, &terminal))
}

/// Runs `strait check` of clusters.
///
/// # Errors
///
/// As [`run()`].
pub fn check(args: &TypedCheck, public_of: PublicOf) -> anyhow::Result<ExitCode> {
    let TypedCheck(args) = args;
    let terminal = Terminal::new(false, public_of);
    block_on(&terminal, check::run(args, &terminal))
}

/// Runs a command to its end while `terminal` shows waits and handles Ctrl-C.
fn block_on(
    terminal: &Terminal,
    verb: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    terminal.end_on_interrupt().context("cannot listen for signals")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;

    let done = runtime.block_on(async {
        tokio::select! {
            done = verb => done,
            never = terminal.count_seconds() => match never {},
        }
    });

    done.map_err(|error| match error.downcast::<CommandError>() {
        Ok(error) if error.is_usage() => UsageError::Wrong(error.to_string()).into(),
        Ok(error) => error.into(),
        Err(error) => error,
    })
}

async fn execute(command: &UserCommand, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    match command {
        UserCommand::Network(command) => network(command, terminal).await?,
        UserCommand::Create(command) => create(command, terminal).await?,
        UserCommand::Delete(command) => delete(command, terminal).await?,
        UserCommand::Generate(command) => generate(command, terminal).await?,
        UserCommand::Plan(command) => {
            let status = plan::run(command, terminal).await?;
            terminal.end()?;
            return Ok(status);
        }
        UserCommand::Info(args) => info(args, terminal).await?,
        UserCommand::Status(args) => return status(args, terminal).await,
    }
    terminal.end()?;

    Ok(ExitCode::SUCCESS)
}

async fn network(command: &NetworkCommand, terminal: &Terminal) -> anyhow::Result<()> {
    match command {
        NetworkCommand::Init(args) => {
            let pair = marked(kubeconfig::pair(&args.clusters).await?, &args.marks);
            let session = terminal.session(args.clusters.context.timeout);
            crate::initialize(&pair, session).await?;
        }
        NetworkCommand::Connect(args) => {
            let wanted = requests::connect(args);
            let pair = marked(kubeconfig::pair(&args.clusters).await?, &args.marks);
            let session = terminal.session(args.clusters.context.timeout);
            crate::connect(&pair, &wanted, session).await?;
        }
        NetworkCommand::Disconnect(args) => {
            let pair = kubeconfig::pair(&args.clusters).await?;
            args.confirmation.execute("disconnect")?;
            let session = terminal.session(args.clusters.context.timeout);
            crate::disconnect(&pair, args.clusters.wait, session).await?;
        }
        NetworkCommand::Reset(args) => {
            let pair = kubeconfig::pair(&args.clusters).await?;
            args.confirmation.execute("reset")?;
            let session = terminal.session(args.clusters.context.timeout);
            crate::reset(&pair, args.clusters.wait, session).await?;
        }
    }

    Ok(())
}

/// Adds the labels and annotations that every object of both clusters gets.
fn marked(pair: Pair, args: &MarksArgs) -> Pair {
    let of = |cluster: ClusterContext| ClusterContext { marks: args.marks(), ..cluster };

    Pair { local: of(pair.local), remote: of(pair.remote) }
}

async fn create(command: &CreateCommand, terminal: &Terminal) -> anyhow::Result<()> {
    let wanted = requests::create(command)?;
    let (object, waits) = match command {
        CreateCommand::Configuration(args) => (&args.object, args.wait),
        CreateCommand::Gatewayserver(args) => (&args.object, args.wait),
        CreateCommand::Gatewayclient(args) => (&args.object, args.wait),
        CreateCommand::Publickey(args) => (&args.object, false),
    };
    let ObjectArgs { context, output, marks, yes, .. } = object;
    let cluster =
        ClusterContext { marks: marks.marks(), ..kubeconfig::cluster_context(context).await? };
    let session = terminal.session(context.timeout);
    let options = CreateOptions { format: output.map(Format::from), overwrites: *yes, waits };
    if let Some(text) = crate::create(&cluster, &wanted, options, session).await? {
        terminal.print(&text)?;
    }

    Ok(())
}

async fn delete(command: &DeleteCommand, terminal: &Terminal) -> anyhow::Result<()> {
    let (DeleteCommand::Configuration(args)
    | DeleteCommand::Gatewayserver(args)
    | DeleteCommand::Gatewayclient(args)
    | DeleteCommand::Publickey(args)) = command;
    let DeleteArgs { name, wait, confirmation, context } = args;
    let cluster = kubeconfig::cluster_context(context).await?;
    confirmation.execute("delete")?;
    let session = terminal.session(context.timeout);

    match command {
        DeleteCommand::Configuration(_) => {
            crate::delete::<Configuration>(&cluster, name, *wait, session).await?;
        }
        DeleteCommand::Gatewayserver(_) => {
            crate::delete::<GatewayServer>(&cluster, name, *wait, session).await?;
        }
        DeleteCommand::Gatewayclient(_) => {
            crate::delete::<GatewayClient>(&cluster, name, *wait, session).await?;
        }
        DeleteCommand::Publickey(_) => {
            crate::delete::<PublicKey>(&cluster, name, *wait, session).await?;
        }
    }

    Ok(())
}

async fn generate(command: &GenerateCommand, terminal: &Terminal) -> anyhow::Result<()> {
    let (args, wanted) = match command {
        GenerateCommand::Configuration(args) => (args, crate::Generate::Configuration),
        GenerateCommand::Publickey(args) => {
            let mode = match args.gateway_type {
                GatewayType::Server => Mode::Server,
                GatewayType::Client => Mode::Client,
            };
            let name = args.gateway_name.clone();
            (&args.generate, crate::Generate::PublicKey { mode, name })
        }
    };
    let cluster = kubeconfig::cluster_context(&args.context).await?;
    let session = terminal.session(args.context.timeout);
    let text = crate::generate(&cluster, &wanted, args.output.into(), session).await?;

    Ok(terminal.print(&text)?)
}

async fn info(args: &InfoArgs, terminal: &Terminal) -> anyhow::Result<()> {
    if let Some(InfoCommand::Peer(args)) = &args.command {
        return info_peer(args, terminal).await;
    }
    let cluster = kubeconfig::cluster_context(&args.context).await?;
    let session = terminal.session(args.context.timeout);
    let info = crate::info(&cluster, session).await?;
    let OutputArgs { get, format } = &args.output;
    let text = match (get, &format.output) {
        (Some(path), format) => part(&serde_json::to_value(&info)?, path, *format)?,
        (None, Some(format)) => crate::text(&info, (*format).into())?,
        (None, None) => info.text(args.verbose),
    };

    Ok(terminal.print(&text)?)
}

async fn info_peer(args: &InfoPeerArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let peers = crate::peers(
        &in_all_namespaces(&args.context).await?,
        &args.ids,
        terminal.session(args.context.timeout),
    )
    .await?;
    let OutputArgs { get, format } = &args.output;
    let by_id = || -> serde_json::Result<serde_json::Value> {
        let entries = peers.iter().map(|peer| {
            let value = serde_json::to_value(peer)?;
            Ok((peer.cluster_id.clone(), value))
        });
        entries.collect::<serde_json::Result<serde_json::Map<_, _>>>().map(Into::into)
    };
    let text = match (get, &format.output, peers.as_slice()) {
        // A single named peer needs no id in the path.
        (Some(path), format, [peer]) if args.ids.len() == 1 => {
            part(&serde_json::to_value(peer)?, path, *format)?
        }
        (Some(path), format, _) => part(&by_id()?, path, *format)?,
        (None, Some(format), _) => crate::text(&by_id()?, (*format).into())?,
        (None, None, []) => "no peerings\n".to_owned(),
        (None, None, peers) => {
            let texts: Vec<_> = peers.iter().map(ToString::to_string).collect();
            texts.join("\n")
        }
    };

    Ok(terminal.print(&text)?)
}

async fn status(args: &StatusArgs, terminal: &Terminal) -> anyhow::Result<ExitCode> {
    let cluster = in_all_namespaces(&args.context).await?;
    let session: Session<'_> = terminal.session(args.context.timeout);
    let peers = crate::peers(&cluster, &[], session).await?;
    let text = match args.format.output {
        Some(format) => crate::text(&peers, format.into())?,
        None => match crate::info(&cluster, session).await {
            Ok(own) => format!("{}\n{}", own.text(false), table::of_peers(&peers)),
            // The peerings are shown nevertheless.
            Err(error) => {
                terminal.warn(cluster.side, &error.to_string());
                table::of_peers(&peers)
            }
        },
    };
    terminal.print(&text)?;
    let is_well = |peer: &crate::PeerInfo| match peer.network.status {
        Health::Healthy | Health::Disabled => true,
        Health::Degraded | Health::Unhealthy => false,
    };

    Ok(if peers.iter().all(is_well) { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}

/// Uses all namespaces unless one is named, because each peering has its own.
async fn in_all_namespaces(context: &ContextArgs) -> Result<ClusterContext, UsageError> {
    let cluster = kubeconfig::cluster_context(context).await?;

    Ok(ClusterContext { namespace: context.namespace.clone(), side: Side::Only, ..cluster })
}

/// The part that `--get` selects: a string as it is, anything else in a format.
fn part(
    value: &serde_json::Value,
    path: &str,
    format: Option<args::Format>,
) -> anyhow::Result<String> {
    let Some(part) = crate::select(value, path) else {
        return Err(
            UsageError::Wrong(format!("there is no {path:?}: -o yaml shows everything")).into()
        );
    };

    Ok(match (part, format) {
        (serde_json::Value::String(text), None) => format!("{text}\n"),
        (part, format) => crate::text(part, format.map_or(Format::Yaml, Into::into))?,
    })
}

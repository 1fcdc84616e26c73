//! Converts flags into the requests of the verbs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use strait_api::endpoint::Endpoint;
use strait_host::usage::UsageError;

use super::args::{ConnectArgs, CreateCommand, Service};
use crate::{
    Connect, Create, Exposure, NodePort, Prefixes, ServiceType, TemplateFlags, TypedExposure,
};

pub(super) fn connect(args: &ConnectArgs) -> Connect {
    let legacy = &args.legacy;

    Connect {
        server_template: TemplateFlags {
            type_: args.gw_server_type.clone(),
            name: given(args.gw_server_template_name.as_ref()),
            namespace: given(args.gw_server_template_namespace.as_ref()),
        },
        client_template: TemplateFlags {
            type_: args.gw_client_type.clone(),
            name: given(args.gw_client_template_name.as_ref()),
            namespace: given(args.gw_client_template_namespace.as_ref()),
        },
        exposure: TypedExposure {
            service_type: args
                .gw_server_service_type
                .or(legacy.server_service_type)
                .map(ServiceType::from),
            port: args.gw_server_service_port.or(legacy.server_port),
            node_port: args.gw_server_service_nodeport.or(legacy.node_port).map(node_port),
            load_balancer_ip: args
                .gw_server_service_loadbalancerip
                .clone()
                .or_else(|| legacy.load_balancer_ip.clone()),
        },
        client_address: given(args.gw_client_address.as_ref()),
        client_port: args.gw_client_port.filter(|port| *port != 0),
        mtu: args.mtu,
        gateways: args.gateways,
        hides_keys: args.disable_sharing_keys,
        skips_validation: args.skip_validation,
        waits: args.clusters.wait,
        has_former_lines: legacy.are_used(),
    }
}

pub(super) fn create(command: &CreateCommand) -> Result<Create, UsageError> {
    Ok(match command {
        CreateCommand::Configuration(args) => Create::Configuration {
            name: args.object.name.clone(),
            remote_cluster_id: args.object.remote_cluster_id.clone(),
            prefixes: Prefixes { pod: args.pod_cidr.clone(), external: args.external_cidr.clone() },
        },
        CreateCommand::Gatewayserver(args) => Create::GatewayServer {
            name: args.object.name.clone(),
            remote_cluster_id: args.object.remote_cluster_id.clone(),
            template: (
                args.type_.clone(),
                args.template_name.clone(),
                given(args.template_namespace.as_ref()),
            ),
            exposure: exposure(
                args.service_type,
                args.port,
                args.node_port,
                args.load_balancer_ip.as_ref(),
            ),
            mtu: args.tunnel.mtu,
        },
        CreateCommand::Gatewayclient(args) => Create::GatewayClient {
            name: args.object.name.clone(),
            remote_cluster_id: args.object.remote_cluster_id.clone(),
            template: (
                args.type_.clone(),
                args.template_name.clone(),
                given(args.template_namespace.as_ref()),
            ),
            endpoint: Endpoint {
                addresses: args.addresses.clone(),
                port: Some(args.port.into()),
                ports: Vec::new(),
                protocol: Some(args.protocol.label().to_owned()),
            },
            mtu: args.tunnel.mtu,
        },
        CreateCommand::Publickey(args) => Create::PublicKey {
            name: args.object.name.clone(),
            remote_cluster_id: args.object.remote_cluster_id.clone(),
            key: public_key(&args.public_key)?,
        },
    })
}

fn exposure(
    service_type: Service,
    port: u16,
    node_port: u16,
    load_balancer_ip: Option<&String>,
) -> Exposure {
    Exposure {
        service_type: service_type.into(),
        port,
        node_port: self::node_port(node_port),
        load_balancer_ip: given(load_balancer_ip),
    }
}

const fn node_port(port: u16) -> NodePort {
    match port {
        0 => NodePort::Any,
        port => NodePort::Exactly(port),
    }
}

/// An empty value means unset, as in Liqo's defaults.
fn given(word: Option<&String>) -> Option<String> {
    word.filter(|word| !word.is_empty()).cloned()
}

fn public_key(text: &str) -> Result<[u8; 32], UsageError> {
    let bytes = STANDARD.decode(text.trim()).ok();

    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        UsageError::Wrong(format!(
            "invalid value '{text}' for '--public-key <KEY>': write the 32 bytes of the key in base64, 44 characters"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_is_32_bytes_in_base64() {
        let key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

        assert_eq!(STANDARD.encode(public_key(key).unwrap()), key);
        for wrong in ["", "hSDwCYkwp1R0", "no base64"] {
            let error = public_key(wrong).unwrap_err().to_string();
            assert!(error.contains("--public-key") && error.contains(wrong), "{error}");
        }
    }
}

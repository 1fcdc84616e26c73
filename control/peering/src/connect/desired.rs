//! The desired state of both gateways: as typed, else as it is, else as in Liqo's documentation. Pure.

use k8s_openapi::api::core::v1::ObjectReference;
use strait_api::gateway_server::ServerEndpoint;
use strait_api::identity::Mode;
use strait_api::{GatewayClient, GatewayServer};

use super::super::TemplateType;
use super::super::builders::{
    CLIENT_TEMPLATE, DEFAULT_MTU, DEFAULT_PORT, Exposure, NodePort, SERVER_TEMPLATE, ServiceType,
};
use super::super::preflight::TypedTemplate;

/// The desired state of both gateways. What is left out is kept where a gateway exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// The template of the server.
    pub server_template: TemplateFlags,
    /// The template of the client.
    pub client_template: TemplateFlags,
    /// How the server is exposed.
    pub exposure: TypedExposure,
    /// The address that the client connects to, if not that in the status of the server.
    pub client_address: Option<String>,
    /// The port for that address.
    pub client_port: Option<u16>,
    /// The MTU of the tunnel, in bytes.
    pub mtu: Option<u16>,
    /// How many gateways share the packets.
    pub gateways: Option<u8>,
    /// Whether the public keys are not exchanged.
    pub hides_keys: bool,
    /// Whether templates and ports are not checked before the first write.
    pub skips_validation: bool,
    /// Whether the verb ends only when the gateways reach each other.
    pub waits: bool,
    /// Whether the lines are those of Liqo's documentation before its release 1.0.
    pub has_former_lines: bool,
}

/// A template, as far as it was typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateFlags {
    /// Its kind.
    pub type_: Option<TemplateType>,
    /// Its name.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
}

/// How a gateway server is exposed, as far as it was typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypedExposure {
    /// The type of the Service.
    pub service_type: Option<ServiceType>,
    /// The UDP port, of the Service and of the gateway.
    pub port: Option<u16>,
    /// The UDP port on the nodes.
    pub node_port: Option<NodePort>,
    /// The address that is requested from the load balancer; an empty one leaves it to the balancer.
    pub load_balancer_ip: Option<String>,
}

/// A template to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) type_: TemplateType,
    pub(super) name: String,
    /// Default: the namespace of the installation.
    pub(super) namespace: Option<String>,
}

impl Template {
    /// In the form to look for.
    pub(super) fn typed(&self, mode: Mode) -> TypedTemplate<'_> {
        let Self { type_, name, namespace } = self;

        TypedTemplate { mode, type_, name, namespace: namespace.as_deref() }
    }
}

impl TemplateFlags {
    /// The template of the gateway that is the end `mode`, which is made from `former` so far.
    pub(super) fn or(&self, former: Option<&ObjectReference>, mode: Mode) -> Template {
        let (type_, name) = match mode {
            Mode::Server => (TemplateType::server(), SERVER_TEMPLATE),
            Mode::Client => (TemplateType::client(), CLIENT_TEMPLATE),
        };
        let of_former = |field: fn(&ObjectReference) -> Option<&String>| {
            former.and_then(field).filter(|text| !text.is_empty()).cloned()
        };
        let former_type = former.and_then(TemplateType::of_reference);

        Template {
            type_: self.type_.clone().or(former_type).unwrap_or(type_),
            name: self
                .name
                .clone()
                .or_else(|| of_former(|reference| reference.name.as_ref()))
                .unwrap_or_else(|| name.to_owned()),
            namespace: self
                .namespace
                .clone()
                .or_else(|| of_former(|reference| reference.namespace.as_ref())),
        }
    }
}

impl TypedExposure {
    /// How the server is exposed; it is exposed as `former` so far.
    pub(in super::super) fn or(&self, former: Option<&ServerEndpoint>) -> Exposure {
        let port = |number: Option<i32>| number.and_then(|number| u16::try_from(number).ok());
        let former_type =
            former.and_then(|former| former.service_type.as_deref()).and_then(ServiceType::of_api);
        let service_type = self.service_type.or(former_type).unwrap_or(ServiceType::DEFAULT);
        // A request for another type has no meaning for this one.
        let former_of_type = former.filter(|_| former_type == Some(service_type));
        let former_node_port = former_of_type
            .and_then(|former| port(former.node_port))
            .filter(|port| *port != 0)
            .map_or(NodePort::Any, NodePort::Exactly);
        let former_ip = || former_of_type.and_then(|former| former.load_balancer_ip.clone());

        Exposure {
            service_type,
            port: self
                .port
                .or_else(|| former.and_then(|former| port(former.port)))
                .unwrap_or(DEFAULT_PORT),
            node_port: self.node_port.unwrap_or(former_node_port),
            load_balancer_ip: self
                .load_balancer_ip
                .clone()
                .or_else(former_ip)
                .filter(|address| !address.is_empty()),
        }
    }
}

impl Connect {
    /// The MTU of the tunnel in bytes, the same at both ends.
    pub(super) fn mtu_or(
        &self,
        server: Option<&GatewayServer>,
        client: Option<&GatewayClient>,
    ) -> u16 {
        let former = server
            .and_then(|server| server.spec.mtu)
            .or_else(|| client.and_then(|client| client.spec.mtu))
            .and_then(|mtu| u16::try_from(mtu).ok());

        self.mtu.or(former).unwrap_or(DEFAULT_MTU)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exposure() -> impl Strategy<Value = TypedExposure> {
        let service_type = prop_oneof![
            Just(ServiceType::ClusterIp),
            Just(ServiceType::NodePort),
            Just(ServiceType::LoadBalancer),
        ];
        let node_port = prop_oneof![Just(NodePort::Any), (1..4_u16).prop_map(NodePort::Exactly)];

        (
            prop::option::of(service_type),
            prop::option::of(1..4_u16),
            prop::option::of(node_port),
            prop::option::of("(1[.]1[.]1[.]1)?"),
        )
            .prop_map(|(service_type, port, node_port, load_balancer_ip)| TypedExposure {
                service_type,
                port,
                node_port,
                load_balancer_ip,
            })
    }

    fn written(exposure: &Exposure) -> ServerEndpoint {
        ServerEndpoint {
            load_balancer_ip: exposure.load_balancer_ip.clone(),
            node_port: exposure.node_port.number().map(i32::from),
            port: Some(exposure.port.into()),
            service_type: Some(exposure.service_type.to_string()),
            ..ServerEndpoint::default()
        }
    }

    proptest! {
        #[test]
        fn nothing_typed_changes_nothing(wanted in exposure()) {
            let former = wanted.or(None);

            prop_assert_eq!(TypedExposure::default().or(Some(&written(&former))), former);
        }

        #[test]
        fn typed_values_win(former in exposure(), wanted in exposure()) {
            let settled = wanted.or(Some(&written(&former.or(None))));

            prop_assert!(wanted.service_type.is_none_or(|it| it == settled.service_type));
            prop_assert!(wanted.port.is_none_or(|it| it == settled.port));
            prop_assert!(wanted.node_port.is_none_or(|it| it == settled.node_port));
            let ip = settled.load_balancer_ip.clone().unwrap_or_default();
            prop_assert!(wanted.load_balancer_ip.clone().is_none_or(|it| it == ip));
            // The same again is no change.
            prop_assert_eq!(wanted.or(Some(&written(&settled))), settled);
        }
    }

    #[test]
    fn ports_of_another_type_are_forgotten() {
        let former = ServerEndpoint {
            service_type: Some("NodePort".to_owned()),
            node_port: Some(30742),
            port: Some(51999),
            ..ServerEndpoint::default()
        };
        let wanted =
            TypedExposure { service_type: Some(ServiceType::ClusterIp), ..Default::default() };

        let settled = wanted.or(Some(&former));

        assert_eq!((settled.node_port, settled.port), (NodePort::Any, 51999));
    }

    #[test]
    fn each_part_of_a_template_stays_unless_typed() {
        let former = ObjectReference {
            api_version: Some("example.com/v1".to_owned()),
            kind: Some("ServerTemplate".to_owned()),
            name: Some("ours".to_owned()),
            namespace: Some("net".to_owned()),
            ..ObjectReference::default()
        };
        let wanted = TemplateFlags { name: Some("theirs".to_owned()), ..Default::default() };

        let template = wanted.or(Some(&former), Mode::Server);

        assert_eq!(template.type_.to_string(), "example.com/v1/servertemplates");
        assert_eq!(
            (template.name.as_str(), template.namespace.as_deref()),
            ("theirs", Some("net"))
        );
        let new = TemplateFlags::default().or(None, Mode::Client);
        assert_eq!((new.type_, new.name.as_str()), (TemplateType::client(), "wireguard-client"));
    }
}

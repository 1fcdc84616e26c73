//! Reads flags and environment variables of a container. Pure.

use k8s_openapi::api::core::v1::Container;

/// The value of `flag`, or else that of `variable` in its environment, as far as the spec of the container has it. A
/// flag without a value is empty, unless a word follows it.
pub(super) fn flag_or_env(container: &Container, flag: &str, variable: &str) -> Option<String> {
    let command = container.command.iter().flatten();
    let words: Vec<_> = command.chain(container.args.iter().flatten()).collect();
    let of_flag =
        words.iter().enumerate().find_map(|(place, word)| match word.strip_prefix(flag)? {
            "" => {
                let next = words.get(place + 1).filter(|next| !next.starts_with("--"));
                Some(next.map_or_else(String::new, |next| (*next).clone()))
            }
            rest => rest.strip_prefix('=').map(str::to_owned),
        });
    let mut variables = container.env.iter().flatten();

    of_flag.or_else(|| variables.find(|it| it.name == variable)?.value.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_flag_takes_precedence_over_its_variable() {
        let pools = |container: Value| {
            let container = serde_json::from_value::<Container>(container).unwrap();
            flag_or_env(&container, "--pools", "STRAIT_POOLS")
        };
        let env = [json!({"name": "STRAIT_POOLS", "value": "10.0.0.0/8"})];

        assert_eq!(pools(json!({"name": "a", "args": ["operator", "--pools-of=b"]})), None);
        for container in [
            json!({"name": "a", "args": ["operator", "--pools=10.0.0.0/8"]}),
            json!({"name": "a", "args": ["operator", "--pools", "10.0.0.0/8"]}),
            json!({"name": "a", "command": ["strait", "operator", "--pools=10.0.0.0/8"]}),
            json!({"name": "a", "env": env}),
        ] {
            assert_eq!(pools(container).as_deref(), Some("10.0.0.0/8"));
        }
        let both = json!({"name": "a", "args": ["--pools=192.168.0.0/16"], "env": env});
        assert_eq!(pools(both).as_deref(), Some("192.168.0.0/16"));
        let bare = json!({"name": "a", "args": ["--pools", "--namespace=b"]});
        assert_eq!(pools(bare).as_deref(), Some(""));
    }
}

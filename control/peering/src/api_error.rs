//! Errors of an API server: their text, the remedy, and when to repeat the request.

use std::time::Duration;

use backon::BackoffBuilder as _;
use strait_kube::watch::backoff;

/// The beginning of a verifier's error on a certificate.
const UNTRUSTED: &str = "invalid peer certificate: ";

/// `None` if the user may not ask.
pub(super) fn if_allowed<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(error) if is_forbidden(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether a right is missing, and nothing else is wrong.
pub(super) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

/// The message of the API server, or why there is none, without details for programs only.
pub(super) fn api_error_text(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        let message = status.message.trim();
        return if message.is_empty() {
            format!("status {} {}", status.code, status.reason)
        } else {
            message.to_owned()
        };
    }

    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }

    match text.split_once(UNTRUSTED) {
        Some((_, why)) => format!("the certificate of the API server is not trusted: {why}"),
        None => text,
    }
}

/// The remedy for `error`, if it is known.
pub(super) fn remedy(error: &kube::Error) -> &'static str {
    if let kube::Error::Api(status) = error {
        return match status.code {
            401 => "; log in again, or choose another context",
            403 => "; ask for these rights, or choose another context",
            // A missing object has its own error; this is about the kind.
            404 => "; install the API with `strait crds | kubectl apply --server-side -f -`",
            _ => "",
        };
    }

    if is_permanent(error) {
        ""
    } else if api_error_text(error).contains("certificate of the API server is not trusted") {
        "; check certificate-authority of this cluster in the kubeconfig"
    } else {
        "; is the API server of this context there?"
    }
}

/// Whether the server has understood the request and would answer the same again.
pub(super) fn is_permanent(error: &kube::Error) -> bool {
    if let kube::Error::Api(status) = error {
        return matches!(status.code, 400..=409 | 411..=428 | 431..=499);
    }

    matches!(
        error,
        kube::Error::Auth(_) | kube::Error::BuildRequest(_) | kube::Error::SerdeError(_)
    )
}

/// The pauses between attempts to reach an API server that is away; without end.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    backoff().build()
}

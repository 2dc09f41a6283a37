//! What an S3 error means to the operator.
//!
//! Services differ in status and agree on `<Code>`, so the code decides where there is one. From the body only code and
//! message are repeated: the rest may hold the session token and the text that was signed.

use crate::{Denied, StoreError};
use object_store::Error;

/// What errors are about.
pub(super) struct Place {
    pub bucket: String,
    pub service: String,
}

impl Place {
    pub(super) fn error(&self, key: &str, error: Error) -> StoreError {
        let text = error.to_string();
        let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
        let status = status(&text, &error);
        let detail = self.detail(&text, code, status, &error);
        if let Some(reason) = denied(code, status, &text) {
            return StoreError::Denied { reason, detail };
        }
        match (code, status) {
            ("NoSuchKey" | "NoSuchObject", _) | ("", Some(404)) => StoreError::NotFound { key: key.into() },
            (
                "ConditionalRequestConflict" | "OperationAborted" | "RequestTimeout" | "SlowDown" | "InternalError",
                _,
            ) => StoreError::unavailable(detail),
            ("QuotaExceeded" | "InsufficientStorage" | "XMinioStorageFull" | "ServiceQuotaExceeded", _)
            | (_, Some(507)) => StoreError::Full { detail },
            (_, Some(412 | 409 | 304)) => StoreError::Exists { key: key.into() },
            ("NotImplemented", _) | (_, Some(501)) => {
                let hint = "the store lacks an operation; if it is the conditional put, add conditional_put=false";
                StoreError::invalid(format!("{hint} ({detail})"))
            }
            (_, Some(408 | 425 | 429 | 500..)) => StoreError::unavailable(detail),
            (_, Some(400..)) => StoreError::invalid(format!("{key}: the store does not accept the request ({detail})")),
            _ if matches!(error, Error::NotImplemented { .. } | Error::InvalidPath { .. }) => StoreError::invalid(text),
            _ => StoreError::unavailable(detail),
        }
    }

    fn detail(&self, text: &str, code: &str, status: Option<u16>, error: &Error) -> String {
        let place = format!("bucket {} at {}", self.bucket, self.service);
        match (code, between(text, "<Message>", "</Message>"), status) {
            ("", _, Some(status)) => format!("{place}: HTTP status {status}"),
            ("", _, None) => format!("{place}: {}", innermost(error)),
            (code, Some(message), _) => format!("{place}: {code}: {}", shortened(message)),
            (code, None, _) => format!("{place}: {code}"),
        }
    }
}

fn denied(code: &str, status: Option<u16>, text: &str) -> Option<Denied> {
    Some(match (code, status) {
        ("NoSuchBucket" | "InvalidBucketName", _) => Denied::Bucket,
        (
            "InvalidAccessKeyId"
            | "XAdminUserNotFound"
            | "InvalidToken"
            | "InvalidClientTokenId"
            | "NotSignedUp"
            | "UnrecognizedClientException",
            _,
        ) => Denied::AccessKey,
        ("SignatureDoesNotMatch", _) => Denied::SecretKey,
        ("ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired", _) => Denied::Expired,
        ("RequestTimeTooSkewed" | "RequestExpired", _) => Denied::Clock,
        ("PermanentRedirect" | "IllegalLocationConstraintException" | "IncorrectEndpoint", _)
        | (_, Some(301 | 307 | 308)) => Denied::Region,
        ("AuthorizationHeaderMalformed" | "AuthorizationQueryParametersError", _) if text.contains("region") => {
            Denied::Region
        }
        ("AuthorizationHeaderMalformed", _) => Denied::AccessKey,
        (_, Some(401)) => Denied::AccessKey,
        (_, Some(403)) => Denied::Permission,
        ("", None) if text.contains("Received redirect without LOCATION") => Denied::Region,
        _ => return None,
    })
}

/// A range that begins at or past the end of the object.
pub(super) fn is_past_the_end(error: &Error) -> bool {
    let text = error.to_string();
    status(&text, error) == Some(416) || text.contains("<Code>InvalidRange</Code>")
}

/// `object_store` keeps the status in a type that it does not export; the text has it.
fn status(text: &str, error: &Error) -> Option<u16> {
    let at = text.find("status code: ").map(|at| at + "status code: ".len());
    let said = at.and_then(|at| text.get(at..at + 3)).and_then(|digits| digits.parse().ok());
    said.or(match error {
        Error::NotFound { .. } => Some(404),
        Error::AlreadyExists { .. } | Error::Precondition { .. } => Some(412),
        Error::PermissionDenied { .. } => Some(403),
        Error::Unauthenticated { .. } => Some(401),
        _ => None,
    })
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let start = text.find(from)? + from.len();
    let end = start + text[start..].find(to)?;
    Some(&text[start..end])
}

/// "Connection refused" rather than the five layers around it.
fn innermost(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    shortened(&cause.to_string())
}

fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(status: &str, body: &str) -> StoreError {
        let place = Place { bucket: "b".into(), service: "http://host".into() };
        let text = format!(
            "Error performing PUT http://host/b/k in 1ms - Server returned non-2xx status code: {status}: {body}"
        );
        place.error("k", Error::Generic { store: "S3", source: text.into() })
    }

    fn coded(status: &str, code: &str) -> StoreError {
        classified(
            status,
            &format!("<Error><Code>{code}</Code><Message>words</Message><Token-0>hunter2</Token-0></Error>"),
        )
    }

    #[test]
    fn codes_and_statuses() {
        for (status, code, reason) in [
            ("404 Not Found", "NoSuchBucket", Denied::Bucket),
            ("403 Forbidden", "InvalidAccessKeyId", Denied::AccessKey),
            ("403 Forbidden", "SignatureDoesNotMatch", Denied::SecretKey),
            ("400 Bad Request", "ExpiredToken", Denied::Expired),
            ("403 Forbidden", "RequestTimeTooSkewed", Denied::Clock),
            ("403 Forbidden", "AccessDenied", Denied::Permission),
            ("301 Moved Permanently", "PermanentRedirect", Denied::Region),
        ] {
            let error = coded(status, code);
            assert!(matches!(&error, StoreError::Denied { reason: found, .. } if *found == reason), "{code}: {error}");
            assert!(error.to_string().contains("words") && !format!("{error} {error:?}").contains("hunter2"));
        }
        assert!(matches!(coded("404 Not Found", "NoSuchKey"), StoreError::NotFound { .. }));
        assert!(matches!(coded("412 Precondition Failed", "PreconditionFailed"), StoreError::Exists { .. }));
        assert!(coded("409 Conflict", "ConditionalRequestConflict").is_retryable());
        assert!(coded("503 Slow Down", "SlowDown").is_retryable());
        assert!(classified("502 Bad Gateway", "<html>").is_retryable());
        assert!(coded("507 Insufficient Storage", "XMinioStorageFull").is_retryable());
        assert!(matches!(coded("501 Not Implemented", "NotImplemented"), StoreError::Invalid { .. }));
        assert!(!coded("400 Bad Request", "MalformedXML").is_retryable());
    }
}

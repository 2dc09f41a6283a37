//! Credentials and region for S3, found where the AWS tools look for them.
//!
//! Order: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the web identity variables; the profile in the credentials file, then
//! in the config file; the container variables; the instance metadata service, and that only when the store URL asks for it.
//! Without any of them opening fails at once, and no address that nobody named is ever contacted.

mod ini;

use crate::{Denied, StoreError};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

/// What the process was given: the AWS_ variables and the home directory. Read once, at start.
#[derive(Clone, Default)]
pub struct AwsSettings {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
}

/// Values are secrets, so only names are shown.
impl fmt::Debug for AwsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsSettings").field("variables", &self.variables.keys()).field("home", &self.home).finish()
    }
}

/// Keys for signing.
#[derive(Clone)]
pub(crate) struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(not shown)")
    }
}

/// Where keys come from.
#[derive(Debug)]
pub(crate) enum Source {
    Keys(Keys),
    /// A token file and a role.
    WebIdentity,
    /// ECS, EKS: an address in a variable.
    Container,
    /// EC2.
    Instance,
}

/// Everything that files and variables say about S3.
#[derive(Debug)]
pub(crate) struct Found {
    pub source: Source,
    pub region: Option<String>,
    pub endpoint: Option<String>,
}

impl AwsSettings {
    /// From the process's environment.
    pub fn from_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::from_variables(std::env::vars_os().filter_map(text))
    }

    /// From these variables alone; what does not concern AWS is dropped.
    pub fn from_variables<N: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let mut settings = Self::default();
        for (name, value) in variables {
            let (name, value) = (name.into(), value.into());
            if name == "HOME" {
                settings.home = Some(value.into());
            } else if name.starts_with("AWS_") && !value.is_empty() {
                settings.variables.insert(name, value);
            }
        }
        settings
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    fn profile(&self) -> &str {
        self.get("AWS_PROFILE").or(self.get("AWS_DEFAULT_PROFILE")).unwrap_or("default")
    }

    fn file(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        self.get(variable).map(PathBuf::from).or_else(|| Some(self.home.as_ref()?.join(below_home)))
    }

    /// Looks everywhere. Reads at most two small files; contacts nobody.
    pub(crate) fn find(&self, imds: bool) -> Result<Found, StoreError> {
        let credentials_file = self.file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let config_file = self.file("AWS_CONFIG_FILE", ".aws/config");
        let credentials = read_ini(credentials_file.as_deref())?;
        let config = read_ini(config_file.as_deref())?;
        let profile = self.profile();
        // The config file writes "profile NAME" for every profile but the default one.
        let in_credentials = credentials.section(profile);
        let in_config = match config.section(&format!("profile {profile}")) {
            None if profile == "default" => config.section("default"),
            found => found,
        };
        if in_credentials.is_none() && in_config.is_none() && self.get("AWS_PROFILE").is_some() {
            let files: Vec<_> =
                [&credentials_file, &config_file].into_iter().flatten().map(|f| f.display().to_string()).collect();
            return no_credentials(format!("AWS_PROFILE names {profile:?}, which is not in {}", files.join(" or ")));
        }
        let from_profile =
            |name: &str| in_config.and_then(|s| s.get(name)).or(in_credentials.and_then(|s| s.get(name)));
        let region = self.get("AWS_REGION").or(self.get("AWS_DEFAULT_REGION")).or(from_profile("region"));
        let endpoint =
            self.get("AWS_ENDPOINT_URL_S3").or(self.get("AWS_ENDPOINT_URL")).or(from_profile("endpoint_url"));
        let (region, endpoint) = (region.map(String::from), endpoint.map(String::from));
        let source = match self.keys_from_variables()? {
            Some(keys) => Source::Keys(keys),
            None if self.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && self.get("AWS_ROLE_ARN").is_some() => {
                Source::WebIdentity
            }
            None => match keys_from_sections(profile, [in_credentials, in_config])? {
                Some(keys) => Source::Keys(keys),
                None => self.source_elsewhere(imds, profile, from_profile)?,
            },
        };
        Ok(Found { source, region, endpoint })
    }

    fn keys_from_variables(&self) -> Result<Option<Keys>, StoreError> {
        let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        match names.map(|name| self.get(name)) {
            [Some(id), Some(secret)] => Ok(Some(Keys {
                access_key_id: id.into(),
                secret_access_key: secret.into(),
                session_token: self.get("AWS_SESSION_TOKEN").map(String::from),
            })),
            [Some(_), None] => no_credentials("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not"),
            [None, Some(_)] => no_credentials("AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not"),
            [None, None] => Ok(None),
        }
    }

    fn source_elsewhere<'a>(
        &self,
        imds: bool,
        profile: &str,
        from_profile: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Source, StoreError> {
        for unsupported in ["credential_process", "sso_session", "sso_start_url", "role_arn", "source_profile"] {
            if from_profile(unsupported).is_some() {
                return no_credentials(format!(
                    "profile {profile:?} uses {unsupported}, which is not supported; \
                     run: eval \"$(aws configure export-credentials --profile {profile} --format env)\""
                ));
            }
        }
        let full = self.get("AWS_CONTAINER_CREDENTIALS_FULL_URI").is_some();
        if self.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").is_some()
            || full && self.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").is_some()
        {
            return Ok(Source::Container);
        }
        if imds {
            return Ok(Source::Instance);
        }
        no_credentials(format!(
            "looked at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and at profile {profile:?} in ~/.aws/credentials and \
             ~/.aws/config; on EC2 add imds=true to the store URL"
        ))
    }
}

fn keys_from_sections(profile: &str, sections: [Option<&ini::Section>; 2]) -> Result<Option<Keys>, StoreError> {
    for section in sections.into_iter().flatten() {
        match (section.get("aws_access_key_id"), section.get("aws_secret_access_key")) {
            (Some(id), Some(secret)) => {
                return Ok(Some(Keys {
                    access_key_id: id.into(),
                    secret_access_key: secret.into(),
                    session_token: section.get("aws_session_token").map(String::from),
                }));
            }
            (None, None) => {}
            _ => {
                return no_credentials(format!(
                    "profile {profile:?} has one of aws_access_key_id and aws_secret_access_key only"
                ));
            }
        }
    }
    Ok(None)
}

fn read_ini(path: Option<&Path>) -> Result<ini::Ini, StoreError> {
    let Some(path) = path else { return Ok(ini::Ini::default()) };
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(ini::Ini::parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ini::Ini::default()),
        Err(error) => no_credentials(format!("{}: {error}", path.display())),
    }
}

fn no_credentials<T>(detail: impl Into<String>) -> Result<T, StoreError> {
    Err(StoreError::Denied { reason: Denied::NoCredentials, detail: detail.into() })
}

#[cfg(test)]
mod tests;

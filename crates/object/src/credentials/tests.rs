use super::*;

fn with_files(credentials: &str, config: &str, variables: &[(&str, &str)]) -> (tempfile::TempDir, AwsSettings) {
    let home = tempfile::tempdir().unwrap();
    let aws = home.path().join(".aws");
    std::fs::create_dir(&aws).unwrap();
    std::fs::write(aws.join("credentials"), credentials).unwrap();
    std::fs::write(aws.join("config"), config).unwrap();
    let home_variable = ("HOME", home.path().to_str().unwrap());
    let settings = AwsSettings::from_variables(variables.iter().copied().chain([home_variable]));
    (home, settings)
}

fn keys(settings: &AwsSettings) -> Keys {
    match settings.find(false).unwrap().source {
        Source::Keys(keys) => keys,
        other => panic!("{other:?}"),
    }
}

const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = ONE\naws_secret_access_key=se#c;ret= # old\n\n\
    [work]\naws_access_key_id=TWO\naws_secret_access_key=two\naws_session_token = tok\n";
const CONFIG: &str = "[default]\nregion=eu-west-1\ns3 =\n  region = nested\n[profile work]\nregion = us-west-2\n\
    endpoint_url = http://127.0.0.1:9\n[profile sso]\nsso_session = x\n[profile half]\naws_access_key_id = HALF\n";

#[test]
fn variables_come_before_files() {
    let (_home, settings) = with_files(
        CREDENTIALS,
        CONFIG,
        &[("AWS_ACCESS_KEY_ID", "ENV"), ("AWS_SECRET_ACCESS_KEY", "env"), ("AWS_REGION", "r")],
    );
    assert_eq!(keys(&settings).access_key_id, "ENV");
    assert_eq!(settings.find(false).unwrap().region.as_deref(), Some("r"));
}

#[test]
fn the_default_profile_and_a_named_one() {
    let (_home, settings) = with_files(CREDENTIALS, CONFIG, &[]);
    let found = keys(&settings);
    assert_eq!((found.access_key_id.as_str(), found.secret_access_key.as_str()), ("ONE", "se#c;ret="));
    assert_eq!(settings.find(false).unwrap().region.as_deref(), Some("eu-west-1"));

    let (_home, settings) = with_files(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "work")]);
    let found = keys(&settings);
    assert_eq!((found.access_key_id.as_str(), found.session_token.as_deref()), ("TWO", Some("tok")));
    let found = settings.find(false).unwrap();
    assert_eq!((found.region.as_deref(), found.endpoint.as_deref()), (Some("us-west-2"), Some("http://127.0.0.1:9")));
}

#[test]
fn files_named_by_variables() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, CREDENTIALS).unwrap();
    let settings = AwsSettings::from_variables([("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())]);
    assert_eq!(keys(&settings).access_key_id, "ONE");
}

#[test]
fn what_is_missing_is_said_at_once() {
    let (_home, empty) = with_files("", "", &[]);
    let (_other, nobody) = with_files(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "nobody")]);
    let half = AwsSettings::from_variables([("AWS_ACCESS_KEY_ID", "x")]);
    for (settings, why) in [(&empty, "imds=true"), (&nobody, "\"nobody\""), (&half, "AWS_SECRET_ACCESS_KEY is not")] {
        let error = settings.find(false).unwrap_err();
        assert!(matches!(error, StoreError::Denied { reason: Denied::NoCredentials, .. }));
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(matches!(empty.find(true).unwrap().source, Source::Instance));
}

#[test]
fn unsupported_profiles_say_what_to_run() {
    let (_home, settings) = with_files(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "sso")]);
    assert!(settings.find(false).unwrap_err().to_string().contains("export-credentials"));
    let (_home, settings) = with_files(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "half")]);
    assert!(settings.find(false).unwrap_err().to_string().contains("only"));
}

#[test]
fn roles_of_containers_and_pods() {
    let web = AwsSettings::from_variables([("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn")]);
    assert!(matches!(web.find(false).unwrap().source, Source::WebIdentity));
    let ecs = AwsSettings::from_variables([("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")]);
    assert!(matches!(ecs.find(false).unwrap().source, Source::Container));
}

#[test]
fn nothing_secret_is_shown() {
    let settings = AwsSettings::from_variables([("AWS_ACCESS_KEY_ID", "AKIAX"), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
    let shown = format!("{settings:?} {:?}", settings.find(false));
    assert!(!shown.contains("hunter2") && !shown.contains("AKIAX"), "{shown}");
}

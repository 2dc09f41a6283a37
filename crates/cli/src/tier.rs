//! Write tiers: when fsync returns.

use serde::{Deserialize, Serialize};
use sluice_vfs::{Durability, Settings, Ship};
use std::{fmt, str::FromStr, sync::Arc};

/// What a promise of durability means: when fsync returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Tier {
    /// The disks of the hosts have it: of this one, and of the server.
    #[default]
    Journal,
    /// The store has it.
    Object,
}

/// Objects that are stored at once where syncs wait for them.
const UPLOADS_OF_SYNCS: usize = 16;

impl Tier {
    /// Has syncs wait for the store where they are to, whose metadata `shipped` knows of.
    pub fn put_into(self, settings: &mut Settings, shipped: &Arc<Ship>) {
        if self == Self::Object {
            // Each sync waits for an object of its own or of a few others: small ones, many at once. Memory bounds large ones.
            settings.uploads = UPLOADS_OF_SYNCS;
            settings.durability = Durability::Object(shipped.clone());
        }
    }
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "journal" => Ok(Self::Journal),
            "object" => Ok(Self::Object),
            "replicated" => Err("the tier `replicated`, which keeps a copy in the journal of another host, is not built yet: choose journal or object".into()),
            other => Err(format!("there is no tier `{other}`: choose journal or object")),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Journal => "journal",
            Self::Object => "object",
        })
    }
}

impl TryFrom<String> for Tier {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Tier> for String {
    fn from(tier: Tier) -> Self {
        tier.to_string()
    }
}

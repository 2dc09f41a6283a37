//! The group as a warm-up uses it.

use super::Group;
use crate::message;
use futures::future::join_all;
use sluice_base::ObjectId;
use sluice_object::StoredObject;
use std::time::Duration;

/// Time for a node to fetch an object from the store, behind others.
const FILL_TIME: Duration = Duration::from_secs(60);
/// Tries, each with the owner of that moment: one that is killed is out of the list after 6 s.
const FILL_TRIES: u32 = 5;
/// Between two of them.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Time for a node to say what it has, which it knows by heart.
const HELD_TIME: Duration = Duration::from_secs(5);

impl Group {
    /// Has the owner of an object keep the whole of it. Resolves when it is there, with the bytes that had to be fetched.
    pub async fn fill(&self, object: StoredObject) -> Result<u64, String> {
        let mut tries = 0;
        loop {
            let members = self.members();
            let owner =
                members.owner(object.id()).ok_or("the volume has no nodes: `sluice serve sluice://...` starts one")?;
            let asked = self.link(owner).ask(message::FILL, message::encode_fill(object), FILL_TIME).await;
            let why = match asked {
                Ok(body) => match message::decode_filled(&body) {
                    Some(bytes) => return Ok(bytes),
                    None => "it answers something else".into(),
                },
                Err(error) => error.to_string(),
            };
            tries += 1;
            if tries == FILL_TRIES {
                return Err(format!("node `{}`: {why}", owner.name));
            }
            sluice_run::time::sleep(RETRY_AFTER).await;
        }
    }

    /// What each node has of these objects, at most [`message::HELD_MAX`]: a set of segments for each. Nodes that do not answer are
    /// left out.
    pub async fn held(&self, objects: &[ObjectId]) -> Vec<(String, Vec<message::Set>)> {
        let members = self.members();
        let ask = |member| {
            let link = self.link(member);
            async move {
                let body = link.ask(message::HELD, message::encode_objects(objects), HELD_TIME).await.ok()?;
                Some((member.name.to_string(), message::decode_sets(&body, objects.len())?))
            }
        };
        join_all(members.list().iter().map(ask)).await.into_iter().flatten().collect()
    }
}

//! What a peer knows of the group: the list of now, and the one before for a while.

use crate::{Member, Members};
use sluice_base::ObjectId;
use std::{sync::Arc, time::Duration};

/// How long the members of the previous list are asked for what they may still have.
pub const PREVIOUS_TIME: Duration = Duration::from_secs(600);
/// A list that stood for less than this, as while a group starts, had no time to gather objects: it does not take the place of
/// the previous one.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// The lists that count.
#[derive(Clone, Debug, Default)]
pub struct View {
    current: Arc<Members>,
    since: Duration,
    previous: Option<(Arc<Members>, Duration)>,
}

impl View {
    /// The list of now.
    pub fn current(&self) -> &Arc<Members> {
        &self.current
    }

    /// The list before, while it counts.
    pub fn previous(&self, now: Duration) -> Option<&Arc<Members>> {
        let (members, until) = self.previous.as_ref()?;
        (now < *until).then_some(members)
    }

    /// A new list has come. Another epoch is another list, also a smaller one: the server may have begun to count anew.
    pub fn update(&mut self, members: Members, now: Duration) -> bool {
        if members.epoch() == self.current.epoch() {
            return false;
        }
        let stood = now.saturating_sub(self.since) >= SETTLE_TIME;
        let old = std::mem::replace(&mut self.current, Arc::new(members));
        self.since = now;
        if old.has_owners() && (stood || self.previous(now).is_none()) {
            self.previous = Some((old, now + PREVIOUS_TIME));
        }
        true
    }

    /// Who had an object before the list changed and is still there, if it is somebody else than now.
    pub fn previous_owner(&self, object: ObjectId, now: Duration) -> Option<&Member> {
        let before = self.previous(now)?.owner(object)?;
        let still = self.current.get(&before.name)?;
        (self.current.owner(object)?.name != still.name).then_some(still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeName, State};

    fn list(epoch: u32, weights: &[(&str, u32)]) -> Members {
        let member = |(name, weight): &(&str, u32)| Member {
            name: NodeName::new(name).unwrap(),
            address: "127.0.0.1:1".parse().unwrap(),
            weight: *weight,
            capacity_bytes: 0,
            state: State::Active,
        };
        Members::new(epoch, weights.iter().map(member).collect()).unwrap()
    }

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn the_list_before_counts_for_ten_minutes() {
        let mut view = View::default();
        let object = ObjectId([9; 16]);
        assert!(view.update(list(1, &[("a", 1)]), secs(0)));
        assert!(!view.update(list(1, &[("b", 1)]), secs(0)), "the same epoch is the same list");
        assert_eq!(view.previous_owner(object, secs(0)), None);
        view.update(list(2, &[("a", 0), ("b", 1)]), secs(20));
        let before = |view: &View, now| view.previous_owner(object, now).map(|member| member.name.to_string());
        assert_eq!(before(&view, secs(20)), Some("a".into()));
        assert_eq!(before(&view, secs(619)), Some("a".into()));
        assert_eq!(before(&view, secs(620)), None);
        view.update(list(3, &[("b", 1)]), secs(40));
        assert_eq!(before(&view, secs(41)), None, "b had it before and has it now");
    }

    #[test]
    fn who_is_gone_is_not_asked() {
        let mut view = View::default();
        view.update(list(1, &[("a", 1)]), secs(0));
        view.update(list(2, &[("b", 1)]), secs(20));
        assert!(view.previous(secs(21)).is_some());
        assert_eq!(view.previous_owner(ObjectId([9; 16]), secs(21)), None);
    }

    #[test]
    fn a_list_that_stood_for_a_moment_is_not_the_one_before() {
        let mut view = View::default();
        view.update(list(1, &[("a", 1)]), secs(0));
        view.update(list(2, &[("a", 0), ("b", 1)]), secs(20));
        view.update(list(3, &[("a", 0), ("c", 1)]), secs(22));
        assert_eq!(view.previous_owner(ObjectId([9; 16]), secs(22)).unwrap().name.as_str(), "a");
    }
}

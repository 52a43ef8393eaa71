//! Which slots of the warden are taken.

use std::sync::{Arc, Mutex};

use super::range::USERS;

/// The lowest free number is taken first, so that few namespaces are made.
#[derive(Debug, Default)]
pub(super) struct SlotNumbers(Mutex<Vec<bool>>);

/// A number that no other session has, until this is dropped.
#[derive(Debug)]
pub(super) struct SlotNumber {
    pub(super) number: u32,
    owner: Arc<SlotNumbers>,
}

impl SlotNumbers {
    /// None when there are no more users.
    pub(super) fn take(this: &Arc<Self>) -> Option<SlotNumber> {
        let mut taken = this.0.lock().expect("no panic while the list is held");
        let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        let number = u32::try_from(free).ok().filter(|number| *number < USERS)?;
        if free == taken.len() {
            taken.push(true);
        } else {
            taken[free] = true;
        }
        Some(SlotNumber { number, owner: Arc::clone(this) })
    }
}

impl Drop for SlotNumber {
    fn drop(&mut self) {
        let mut taken = self.owner.0.lock().expect("no panic while the list is held");
        taken[self.number as usize] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_once_and_free_again_when_dropped() {
        let slots = Arc::new(SlotNumbers::default());
        let take = || SlotNumbers::take(&slots).expect("free");
        let (first, second) = (take(), take());
        assert_eq!((first.number, second.number), (0, 1));
        drop(first);
        let again = take();
        assert_eq!(again.number, 0);
        drop((second, again));
    }
}

//! The term that a member has won.

use async_trait::async_trait;
use mc_types::{Epoch, Sequence};

use super::authority::Authority;
use super::error::ElectionError;
use super::member::{MAX_MEMBERS, Member, MemberId};

/// A term of this member as the leader. Dropping it gives the term up.
#[derive(Debug)]
pub struct Leadership {
    authority: Authority,
    member: Member,
    last_unclean: Epoch,
    term: Box<dyn Term>,
}

/// The operations of a term, for implementations of elections. Dropping it ends the term.
#[async_trait]
pub trait Term: std::fmt::Debug + Send + Sync {
    /// Records the in-sync set, if the term still lasts there.
    ///
    /// # Errors
    /// [`ElectionError`]; [`Deposed`](ElectionError::Deposed) when the term is over.
    async fn set_in_sync(&self, members: &[MemberId]) -> Result<(), ElectionError>;

    /// Notes up to which change every member in sync has the journal: [`Progress::common`]. It is
    /// recorded with the next renewal.
    ///
    /// [`Progress::common`]: super::Progress::common
    fn set_common(&self, common: Sequence);

    /// Ends the term, so that another member, `to` at first, can lead at once. When it
    /// [`yields`](Leadership::yield_to), the in-sync set and the progress are forgotten in the same
    /// step.
    ///
    /// # Errors
    /// [`ElectionError`] when that failed; then the term ends with its lease.
    async fn resign(
        self: Box<Self>,
        to: Option<&MemberId>,
        yields: bool,
    ) -> Result<(), ElectionError>;
}

impl Leadership {
    /// A term that was won; `last_unclean` as [`last_unclean`](Self::last_unclean) returns it.
    #[must_use]
    pub fn new(
        authority: Authority,
        member: Member,
        last_unclean: Epoch,
        term: Box<dyn Term>,
    ) -> Self {
        Self { authority, member, last_unclean, term }
    }

    /// Returns the last term, this one included, that began with a member that was not known to have
    /// everything; 0 when none did. What other members have from before it, this one may lack.
    #[must_use]
    pub fn last_unclean(&self) -> Epoch {
        self.last_unclean
    }

    /// Returns the epoch of the term.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.authority.epoch()
    }

    /// Returns the permission to act, to be checked before every act.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the member that leads.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Records the members that have everything that was acknowledged, this one among them whether
    /// it is named or not. A leader must not acknowledge what a member of the recorded set lacks;
    /// so it removes a member here before it acknowledges without it.
    ///
    /// After an error other than [`Deposed`](ElectionError::Deposed) the set may have been recorded
    /// or not; read it, or set it again.
    ///
    /// # Errors
    /// [`ElectionError::Deposed`] when the term is over, [`ElectionError::TooManyMembers`], and
    /// those of the election service.
    pub async fn set_in_sync(&self, members: &[MemberId]) -> Result<(), ElectionError> {
        if !self.authority.is_valid() {
            return Err(ElectionError::Deposed { epoch: self.epoch() });
        }
        let mut all = vec![self.member.id().clone()];
        for member in members {
            if !all.contains(member) {
                all.push(member.clone());
            }
            if all.len() > MAX_MEMBERS {
                return Err(ElectionError::TooManyMembers { wanted: members.len() });
            }
        }
        self.term.set_in_sync(&all).await
    }

    /// Notes up to which change the journals of all members that are recorded as in sync are durable,
    /// this one's included. Cheap: it is recorded with the next renewal of the term.
    pub fn set_common(&self, common: Sequence) {
        self.term.set_common(common);
    }

    /// Hands the leadership over. The authority is invalid from the first poll on; the other members
    /// let `to` campaign first and wait for it for a second.
    ///
    /// # Errors
    /// [`ElectionError`] when the election service was not told; then the term ends with its lease.
    pub async fn resign(self, to: Option<&MemberId>) -> Result<(), ElectionError> {
        self.term.resign(to, false).await
    }

    /// Leaves the leadership to a member with another history, because there is nothing in this one's:
    /// as [`resign`](Self::resign), and forgets which members were in sync.
    ///
    /// # Errors
    /// As [`resign`](Self::resign).
    pub async fn yield_to(self, to: &MemberId) -> Result<(), ElectionError> {
        self.term.resign(Some(to), true).await
    }
}

//! Commands about segments that clients could not reach.

use core::time::Duration;
use std::sync::Arc;

use mc_types::{ClientId, SegmentId, Time};

use crate::effect::Effect;
use crate::master::Master;
use crate::side_tables::clients::Clients;
use crate::side_tables::damage::ReportOutcome;
use crate::side_tables::suspicion::{
    AT_A_TIME, Doubt, MAX_DOUBTS, MAX_WITNESSES, Suspicion, TRIAL_AFTER,
};
use crate::space::segment::Segment;
use crate::space::table::SegmentTable;
use crate::vocabulary::states::SegmentStatus;

impl Master {
    /// Takes note that a client could not reach a segment. `source` tells those apart that
    /// report, as for [`report_damage`](Self::report_damage).
    pub fn report_unreachable(&self, now: Time, source: u64, segment: SegmentId) -> ReportOutcome {
        let clients = self.clients.lock();
        let mut table = self.segments.write();
        let mut suspicion = self.suspicion.lock();
        suspicion.totals.suspicion_reports += 1;
        let known = table.by_id(segment).filter(|known| known.status() == SegmentStatus::Ok);
        let Some(client) = known.map(|known| known.client()) else {
            suspicion.totals.suspicion_dropped += 1;
            return ReportOutcome::Stale;
        };
        let doubt = suspicion.doubts.get(&segment);
        if doubt.is_some_and(|doubt| {
            doubt.witnesses.contains(&source) || doubt.witnesses.len() == MAX_WITNESSES
        }) {
            return ReportOutcome::Noted;
        }
        let (is_new, unproven) = (doubt.is_none(), suspicion.unproven.contains(&client));
        let is_full = is_new && suspicion.doubts.len() >= MAX_DOUBTS;
        if is_full || !suspicion.credits.take(source, now) {
            suspicion.totals.suspicion_dropped += 1;
            return ReportOutcome::Limited;
        }
        if is_new {
            suspicion.by_client.entry(client).or_default().push(segment);
        }
        let doubt = suspicion.doubts.entry(segment);
        let doubt = doubt.or_insert(Doubt::of(client, now));
        doubt.witnesses.push(source);
        if unproven || self.is_believed(doubt, &clients, now) {
            self.suspect(&mut suspicion, &mut table, segment, now);
        }
        ReportOutcome::Noted
    }

    fn is_believed(&self, doubt: &Doubt, clients: &Clients, now: Time) -> bool {
        doubt.is_declared
            || doubt.witnesses.len() > 1
            || clients.last_heard(doubt.client) + self.heartbeat_late() <= now
    }

    /// How long after its last heartbeat a node is late, if it sends one a second. Nodes with a
    /// longer interval have a longer time to live.
    fn heartbeat_late(&self) -> Duration {
        self.config.client_ttl * 3 / 20
    }

    /// Places nothing in a segment from now on, unless it is the last one of its medium.
    fn suspect(
        &self,
        suspicion: &mut Suspicion,
        table: &mut SegmentTable,
        id: SegmentId,
        now: Time,
    ) {
        let Suspicion { doubts, credits, totals, .. } = suspicion;
        let Some(doubt) = doubts.get_mut(&id).filter(|doubt| !doubt.is_suspect) else { return };
        let is_last = |segment: &Arc<Segment>| table.pool(segment.medium()).segments().len() < 2;
        if table.by_id(id).is_none_or(is_last) {
            return;
        }
        let Some(segment) = table.set_suspect(id, true) else { return };
        doubt.is_suspect = true;
        totals.suspicion_suspected += 1;
        totals.suspicion_declared += u64::from(doubt.is_declared);
        totals.suspicion_suspects += 1;
        doubt.witnesses.iter().for_each(|&source| credits.give_back(source));
        self.emit(now).effect(&Effect::SegmentSuspected { segment: &segment, is_suspect: true });
    }

    /// Ends the doubts about a node's segments, because the node was heard of. The reporters pay.
    pub(crate) fn clear_doubts(&self, client: ClientId, now: Time) {
        let is_doubted = {
            let mut suspicion = self.suspicion.lock();
            suspicion.unproven.remove(&client);
            suspicion.by_client.contains_key(&client)
        };
        if !is_doubted {
            return;
        }
        let mut table = self.segments.write();
        let mut suspicion = self.suspicion.lock();
        for id in suspicion.by_client.get(&client).cloned().unwrap_or_default() {
            let Some(doubt) = suspicion.take(id) else { continue };
            suspicion.totals.suspicion_cleared += 1;
            // Where the node itself says so the reporters were right.
            for &source in doubt.witnesses.iter().filter(|_| !doubt.is_declared) {
                suspicion.credits.penalize(source);
            }
            self.trust(&mut table, id, now);
        }
    }

    /// Keeps the doubts of others about a node that has never reached itself, for a while: its
    /// heartbeat shows that it lives, not that clients reach it.
    pub(crate) fn keep_doubts(&self, client: ClientId, now: Time) {
        let over: Vec<SegmentId> = {
            let table = self.segments.read();
            let mut suspicion = self.suspicion.lock();
            if !table.of_client(client).is_empty() {
                suspicion.unproven.insert(client);
            }
            let is_over = |doubt: &Doubt| doubt.is_declared || doubt.since + TRIAL_AFTER <= now;
            let own = suspicion.by_client.get(&client).into_iter().flatten().copied();
            own.filter(|id| suspicion.doubts.get(id).is_some_and(is_over)).collect()
        };
        if over.is_empty() {
            return;
        }
        let mut table = self.segments.write();
        let mut suspicion = self.suspicion.lock();
        for id in over {
            if suspicion.take(id).is_some() {
                suspicion.totals.suspicion_cleared += 1;
                self.trust(&mut table, id, now);
            }
        }
    }

    /// Doubts all segments of a node that cannot be reached by its own word.
    pub(crate) fn doubt_all(&self, client: ClientId, now: Time) {
        let doubted = |suspicion: &Suspicion, id: &SegmentId| {
            suspicion.doubts.get(id).is_some_and(|doubt| doubt.is_declared && doubt.is_suspect)
        };
        let own: Vec<SegmentId> = {
            let table = self.segments.read();
            let takes_objects = |id: &SegmentId| {
                table.by_id(*id).is_some_and(|known| known.status() == SegmentStatus::Ok)
            };
            let suspicion = self.suspicion.lock();
            let own = table.of_client(client).into_iter().filter(takes_objects);
            own.filter(|id| !doubted(&suspicion, id)).collect()
        };
        // Said again with each heartbeat.
        if own.is_empty() {
            return;
        }
        let mut table = self.segments.write();
        let mut suspicion = self.suspicion.lock();
        for id in own {
            let is_there = table.by_id(id).is_some_and(|known| known.status() == SegmentStatus::Ok);
            let is_new = !suspicion.doubts.contains_key(&id);
            if !is_there || (is_new && suspicion.doubts.len() >= MAX_DOUBTS) {
                continue;
            }
            if is_new {
                suspicion.by_client.entry(client).or_default().push(id);
            }
            let doubt = suspicion.doubts.entry(id).or_insert(Doubt::of(client, now));
            let was_suspect = doubt.is_suspect && !doubt.is_declared;
            doubt.is_declared = true;
            suspicion.totals.suspicion_declared += u64::from(was_suspect);
            self.suspect(&mut suspicion, &mut table, id, now);
        }
    }

    fn trust(&self, table: &mut SegmentTable, id: SegmentId, now: Time) {
        if let Some(segment) = table.set_suspect(id, false) {
            let is_suspect = false;
            self.emit(now).effect(&Effect::SegmentSuspected { segment: &segment, is_suspect });
        }
    }

    /// Suspects segments whose nodes are late now, and forgets doubts about those that take no
    /// new objects any more. When nothing of a medium is left but suspects, they are better than
    /// nothing.
    pub(crate) fn run_doubts(&self, now: Time) {
        let is_idle = {
            let suspicion = self.suspicion.lock();
            suspicion.doubts.is_empty() && suspicion.unproven.is_empty()
        };
        if is_idle {
            return;
        }
        {
            let table = self.segments.read();
            let mut suspicion = self.suspicion.lock();
            suspicion.unproven.retain(|client| !table.of_client(*client).is_empty());
            if suspicion.doubts.is_empty() {
                return;
            }
        }
        let clients = self.clients.lock();
        let (mut late, is_any_left) = {
            let table = self.segments.read();
            let mut suspicion = self.suspicion.lock();
            let (mut over, mut late) = (Vec::new(), Vec::new());
            for (&id, doubt) in &suspicion.doubts {
                let known = table.by_id(id);
                if known.is_none_or(|known| known.status() != SegmentStatus::Ok) {
                    over.push(id);
                } else if !doubt.is_suspect
                    && (suspicion.unproven.contains(&doubt.client)
                        || self.is_believed(doubt, &clients, now))
                {
                    late.push(id);
                }
            }
            // Suspended because they were silent for too long, or taken out meanwhile.
            for id in over {
                suspicion.take(id);
            }
            let is_any_left = suspicion.doubts.keys().all(|id| !is_last_resort(&table, *id));
            (late, is_any_left)
        };
        late.truncate(AT_A_TIME);
        if late.is_empty() && is_any_left {
            return;
        }
        // No client places anything while this is held.
        let mut table = self.segments.write();
        let mut suspicion = self.suspicion.lock();
        for id in late {
            self.suspect(&mut suspicion, &mut table, id, now);
        }
        let doubted = suspicion.doubts.keys().copied();
        let last: Vec<SegmentId> = doubted.filter(|id| is_last_resort(&table, *id)).collect();
        for id in last {
            suspicion.take(id);
            self.trust(&mut table, id, now);
        }
    }
}

/// Returns whether no segment of this one's medium takes new objects.
fn is_last_resort(table: &SegmentTable, id: SegmentId) -> bool {
    table.by_id(id).is_some_and(|segment| table.pool(segment.medium()).is_empty())
}

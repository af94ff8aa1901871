//! Quotas against a slow, obvious model of them.

use std::collections::BTreeMap;

use mc_meta::{
    DefaultQuota, MAX_QUOTA, PolicyError, QuotaError, QuotaMode, Quotas, TenantId, TenantSlot,
    TenantUsage, TierUsage, UNLIMITED,
};
use proptest::prelude::*;

const NAMES: [&str; 4] = ["default", "a", "b", "c"];

#[derive(Clone, Debug)]
enum Op {
    Capacity(u64),
    SetPolicy(usize, u64),
    DeletePolicy(usize),
    Replace(Vec<(usize, u64)>),
    /// Charges for so much, shrinks to the second amount, and keeps that or not.
    Charge(usize, u64, u64, bool),
    ChargeMore(usize, u64, bool),
    Refund(usize, u64),
    Release(usize),
    Restore(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES.len();
    let bytes = || prop_oneof![0..50u64, Just(u64::MAX)];
    let requested = || 0..100u64;
    prop_oneof![
        1 => (0..200u64).prop_map(Op::Capacity),
        2 => (name(), requested()).prop_map(|(at, bytes)| Op::SetPolicy(at, bytes)),
        2 => name().prop_map(Op::DeletePolicy),
        1 => prop::collection::vec((name(), requested()), 0..4).prop_map(Op::Replace),
        6 => (name(), bytes(), bytes(), any::<bool>())
            .prop_map(|(at, bytes, less, keep)| Op::Charge(at, bytes, less, keep)),
        2 => (any::<usize>(), bytes(), any::<bool>())
            .prop_map(|(at, bytes, keep)| Op::ChargeMore(at, bytes, keep)),
        2 => (any::<usize>(), 0..50u64).prop_map(|(at, bytes)| Op::Refund(at, bytes)),
        3 => any::<usize>().prop_map(Op::Release),
        1 => (name(), 0..50u64).prop_map(|(at, bytes)| Op::Restore(at, bytes)),
    ]
}

struct Object {
    tenant: usize,
    slot: TenantSlot,
    bytes: u64,
}

/// Keeps every object, and counts anew each time.
#[derive(Default)]
struct Model {
    /// Bytes that a tenant without a policy may have.
    default: u64,
    capacity: u64,
    policies: BTreeMap<usize, u64>,
    objects: Vec<Object>,
}

impl Model {
    fn charged(&self, tenant: usize) -> u64 {
        self.objects.iter().filter(|object| object.tenant == tenant).map(|o| o.bytes).sum()
    }

    fn objects(&self, tenant: usize) -> u64 {
        self.objects.iter().filter(|object| object.tenant == tenant).count() as u64
    }

    fn effective(&self, tenant: usize) -> u64 {
        let Some(requested) = self.policies.get(&tenant).copied() else { return self.default };
        let sum: u64 = self.policies.values().sum();
        if sum <= self.capacity { requested } else { requested * self.capacity / sum }
    }

    fn expected(&self, tenant: usize, wanted: u64) -> Result<(), QuotaError> {
        let id = TenantId::new(NAMES[tenant]).unwrap();
        let requested = self.policies.get(&tenant).copied().unwrap_or(self.default);
        if requested == 0 {
            return Err(QuotaError::NotRegistered { tenant: id });
        }
        let (charged, effective) = (self.charged(tenant), self.effective(tenant));
        if u128::from(charged) + u128::from(wanted) <= u128::from(effective.min(MAX_QUOTA)) {
            Ok(())
        } else {
            Err(QuotaError::Exceeded { tenant: id, charged, effective, requested, wanted })
        }
    }

    fn check(&self, quotas: &Quotas) {
        let report = quotas.report().unwrap();
        assert_eq!(report.mismatches, 0);
        assert_eq!(report.capacity, self.capacity);
        assert!(report.effective <= self.capacity);
        assert_eq!(report.requested, self.policies.values().sum::<u64>());
        let mut names = NAMES;
        names.sort_unstable();
        let rows: Vec<_> = names
            .iter()
            .map(|name| NAMES.iter().position(|other| other == name).unwrap())
            .filter(|at| self.policies.contains_key(at) || self.objects(*at) > 0)
            .map(|at| TenantUsage {
                tenant: TenantId::new(NAMES[at]).unwrap(),
                requested: self.policies.get(&at).copied(),
                mode: QuotaMode::Evict,
                effective: self.effective(at),
                charged: self.charged(at),
                objects: self.objects(at),
                rejected: 0,
                evicted_bytes: 0,
                disks: TierUsage::NONE,
                files: TierUsage::NONE,
                found: 0,
                missed: 0,
            })
            .collect();
        let mut seen = report.tenants;
        for row in &mut seen {
            row.rejected = 0;
        }
        assert_eq!(seen, rows);
        for object in &self.objects {
            let others = self.objects.iter().filter(|other| other.slot == object.slot);
            assert!(others.into_iter().all(|other| other.tenant == object.tenant));
        }
    }
}

fn apply(model: &mut Model, quotas: &Quotas, op: Op) {
    let id = |at: usize| TenantId::new(NAMES[at]).unwrap();
    let pick = |model: &Model, at: usize| match model.objects.len() {
        0 => None,
        len => Some(at % len),
    };
    match op {
        Op::Capacity(bytes) => {
            model.capacity = bytes;
            quotas.set_capacity(bytes);
        }
        Op::SetPolicy(at, requested) => {
            let set = quotas.set_policy(&id(at), requested);
            if requested == 0 {
                assert_eq!(set, Err(PolicyError::OutOfRange { requested }));
            } else {
                assert_eq!(set, Ok(()));
                model.policies.insert(at, requested);
            }
        }
        Op::DeletePolicy(at) => {
            let (tenant, charged, objects) = (id(at), model.charged(at), model.objects(at));
            let expected = match (model.policies.contains_key(&at), objects) {
                (false, _) => Err(PolicyError::NotRegistered { tenant }),
                (true, 0) => Ok(()),
                (true, _) if model.default > 0 => Ok(()),
                (true, _) => Err(PolicyError::NotEmpty { tenant, charged, objects }),
            };
            assert_eq!(quotas.delete_policy(&id(at)), expected);
            if expected.is_ok() {
                model.policies.remove(&at);
            }
        }
        Op::Replace(policies) => {
            let policies: BTreeMap<usize, u64> = policies.into_iter().collect();
            let named = policies.iter().map(|(at, requested)| (id(*at), *requested)).collect();
            let replaced = quotas.replace_policies(&named);
            if policies.values().any(|requested| *requested == 0) {
                assert_eq!(replaced, Err(PolicyError::OutOfRange { requested: 0 }));
            } else {
                assert_eq!(replaced, Ok(()));
                model.policies = policies;
            }
        }
        Op::Charge(at, bytes, less, keep) => {
            let mut charge = quotas.charge(&id(at), bytes);
            assert_eq!(charge.as_ref().map(drop).map_err(Clone::clone), model.expected(at, bytes));
            if let Ok(charge) = &mut charge {
                charge.shrink_to(less);
            }
            if let Ok(charge) = charge
                && keep
            {
                let object = Object { tenant: at, slot: charge.keep(), bytes: bytes.min(less) };
                model.objects.push(object);
            }
        }
        Op::ChargeMore(at, bytes, keep) => {
            let Some(at) = pick(model, at) else { return };
            let Object { tenant, slot, .. } = model.objects[at];
            let charge = quotas.charge_more(slot, bytes);
            let expected = model.expected(tenant, bytes);
            assert_eq!(charge.as_ref().map(drop).map_err(Clone::clone), expected);
            if let Ok(charge) = charge
                && keep
            {
                assert_eq!(charge.keep(), slot);
                model.objects[at].bytes += bytes;
            }
        }
        Op::Refund(at, bytes) => {
            let Some(at) = pick(model, at) else { return };
            let object = &mut model.objects[at];
            let bytes = bytes.min(object.bytes);
            quotas.refund(object.slot, bytes);
            object.bytes -= bytes;
        }
        Op::Release(at) => {
            let Some(at) = pick(model, at) else { return };
            let object = model.objects.swap_remove(at);
            quotas.release(object.slot, object.bytes);
        }
        Op::Restore(at, bytes) => {
            let slot = quotas.restore(&id(at), bytes).unwrap();
            model.objects.push(Object { tenant: at, slot, bytes });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn quotas_do_what_the_model_does(
        (config, default) in prop::sample::select(vec![
            (DefaultQuota::Denied, 0),
            (DefaultQuota::Bytes(60), 60),
            (DefaultQuota::Unlimited, UNLIMITED),
        ]),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let quotas = Quotas::on(config);
        let mut model = Model { default, ..Model::default() };
        for op in ops {
            apply(&mut model, &quotas, op);
            model.check(&quotas);
        }
    }
}

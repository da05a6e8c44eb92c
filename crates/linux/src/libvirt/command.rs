//! The calls of libvirt that change a running domain, safe. None of them changes what it will be after its
//! next start (`VIR_DOMAIN_AFFECT_LIVE`). As those of [`api`](super::api), each may block.

use std::ffi::{CString, c_int};

use corefit_core::{CpuId, CpuSet};

use super::api::{Domain, Failure};
use super::sys;

/// A parameter of a domain's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// `cpu_shares`, a period.
    Unsigned(&'static str, u64),
    /// A quota; negative: none.
    Signed(&'static str, i64),
}

impl Domain<'_> {
    /// Sets parameters of its scheduler, one after the other: where one fails, those before it are set.
    pub(super) fn set_scheduler(&self, parameters: &[Parameter]) -> Result<(), Failure> {
        let mut raw: Vec<sys::virTypedParameter> = parameters.iter().map(Parameter::raw).collect();
        let count = c_int::try_from(raw.len()).unwrap_or(0);
        // SAFETY: a domain, and so many filled parameters.
        done(unsafe {
            sys::virDomainSetSchedulerParametersFlags(
                self.raw,
                raw.as_mut_ptr(),
                count,
                sys::VIR_DOMAIN_AFFECT_LIVE,
            )
        })
    }

    /// Lets a vCPU use these pCPUs only.
    pub(super) fn pin(&self, vcpu: u32, pcpus: &CpuSet) -> Result<(), Failure> {
        let mut map = map(pcpus);
        let length = c_int::try_from(map.len()).unwrap_or(c_int::MAX);
        // SAFETY: a domain, and a map of so many bytes. Without flags it is live.
        done(unsafe { sys::virDomainPinVcpu(self.raw, vcpu, map.as_mut_ptr(), length) })
    }

    /// Moves its memory to these NUMA nodes; only domains in mode restrictive can.
    pub(super) fn move_memory(&self, nodes: &CpuSet) -> Result<(), Failure> {
        let list = CString::new(nodes.to_string()).unwrap_or_default();
        let type_ = c_int::try_from(sys::VIR_TYPED_PARAM_STRING).unwrap_or(0);
        let value = sys::virTypedValue { s: list.as_ptr().cast_mut() };
        let mut raw = [sys::virTypedParameter { field: field("numa_nodeset"), type_, value }];
        // SAFETY: a domain, and one filled parameter whose text outlives the call; libvirt only reads it.
        done(unsafe {
            sys::virDomainSetNumaParameters(self.raw, raw.as_mut_ptr(), 1, sys::VIR_DOMAIN_AFFECT_LIVE)
        })
    }

    /// Plugs vCPUs in or out; taking one out is a request that the guest may not follow.
    pub(super) fn plug(&self, vcpus: &CpuSet, state: bool) -> Result<(), Failure> {
        let list = CString::new(vcpus.to_string()).unwrap_or_default();
        // SAFETY: a domain, and a C string.
        done(unsafe {
            sys::virDomainSetVcpu(self.raw, list.as_ptr(), c_int::from(state), sys::VIR_DOMAIN_AFFECT_LIVE)
        })
    }

    /// Sets the element of a namespace in its metadata, or removes it. `element` is XML.
    pub(super) fn set_metadata(&self, namespace: &str, element: Option<&str>) -> Result<(), Failure> {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let (namespace, element, key) = (text(namespace), element.map(text), c"corefit");
        let element = element.as_ref().map_or(std::ptr::null(), |element| element.as_ptr());
        // SAFETY: a domain and C strings; without an element, the one that is there is removed.
        done(unsafe {
            sys::virDomainSetMetadata(
                self.raw,
                sys::VIR_DOMAIN_METADATA_ELEMENT,
                element,
                key.as_ptr(),
                namespace.as_ptr(),
                sys::VIR_DOMAIN_AFFECT_LIVE,
            )
        })
    }
}

impl Parameter {
    fn raw(&self) -> sys::virTypedParameter {
        let (name, type_, value) = match *self {
            Parameter::Unsigned(name, value) => {
                (name, sys::VIR_TYPED_PARAM_ULLONG, sys::virTypedValue { ul: value })
            }
            Parameter::Signed(name, value) => {
                (name, sys::VIR_TYPED_PARAM_LLONG, sys::virTypedValue { l: value })
            }
        };
        sys::virTypedParameter { field: field(name), type_: c_int::try_from(type_).unwrap_or(0), value }
    }
}

/// A name in a field of fixed length.
fn field(name: &str) -> [std::ffi::c_char; 80] {
    let mut field = [0; 80];
    for (to, from) in field.iter_mut().zip(name.bytes().take(79)) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    field
}

/// A bit for each pCPU, as many bytes as the last one needs.
fn map(pcpus: &CpuSet) -> Vec<u8> {
    let last = pcpus.iter().last().map_or(0, |CpuId(cpu)| cpu as usize);
    let mut map = vec![0; last / 8 + 1];
    for CpuId(cpu) in pcpus.iter() {
        map[cpu as usize / 8] |= 1 << (cpu % 8);
    }
    map
}

fn done(result: c_int) -> Result<(), Failure> {
    if result < 0 { Err(Failure::last()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::api::{Access, Connection};

    #[test]
    fn pins_plugs_and_keeps_metadata_on_the_test_driver() {
        let connection = Connection::open("test:///default", Access::Write, 4).unwrap();
        let domain = &connection.domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE).unwrap()[0];
        domain.pin(1, &"3,9".parse().unwrap()).unwrap();
        let map = domain.vcpus(2, 16).unwrap().swap_remove(1).map;
        let allowed: Vec<usize> = (0..16).filter(|pcpu| map[*pcpu]).collect();
        assert_eq!(allowed, [3, 9]);
        domain.set_metadata("urn:corefit:kept", Some("<kept>a &lt; b</kept>")).unwrap();
        let xml = domain.xml().unwrap();
        assert!(xml.contains("urn:corefit:kept") && xml.contains("a &lt; b"), "{xml}");
        domain.set_metadata("urn:corefit:kept", None).unwrap();
        assert!(!domain.xml().unwrap().contains("urn:corefit:kept"));
        assert!(domain.pin(99, &"0".parse().unwrap()).is_err());
    }

    #[test]
    fn maps_have_a_bit_for_each_pcpu() {
        assert_eq!(map(&"0,9-10".parse().unwrap()), [0b1, 0b110]);
        assert_eq!(map(&CpuSet::default()), [0]);
    }
}

//! The loaded ELF objects, read where the dynamic linker keeps them in memory.
//!
//! `dlsym` answers "what would this *process* bind", but which OpenMP runtime a call was meant
//! for depends on the calling *object*. So this reads each object's own dynamic section: what it
//! defines (`DT_GNU_HASH`), what it needs (`DT_NEEDED`), and what its imports are bound to.
//! Sources: System V gABI chapter 5; "ELF: GNU hash table" in the binutils documentation.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

/// One loaded object.
pub(crate) struct Object {
    base: usize,
    /// First address.
    pub(crate) start: usize,
    /// First address behind it.
    pub(crate) end: usize,
    /// File name; empty for the program itself.
    name: *const c_char,
    dynamic: *const Dynamic,
}

/// Calls `look` with all loaded objects, in the order of loading. None is unloaded meanwhile:
/// the linker's list stays locked, so `look` must not call the linker.
pub(crate) fn with_loaded<R, F: FnOnce(&[Object]) -> R>(look: F) -> Option<R> {
    struct Errand<F, R> {
        look: Option<F>,
        result: Option<R>,
    }
    unsafe extern "C" fn first<F: FnOnce(&[Object]) -> R, R>(
        _: *mut libc::dl_phdr_info,
        _: usize,
        errand: *mut c_void,
    ) -> c_int {
        // SAFETY: the errand passed below, which nobody else refers to.
        let errand = unsafe { &mut *errand.cast::<Errand<F, R>>() };
        let mut objects: Vec<Object> = Vec::new();
        // SAFETY: the callback below takes what is passed here. The list's lock is recursive.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut objects).cast()) };
        if let Some(look) = errand.look.take() {
            errand.result = Some(look(&objects));
        }
        1
    }
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, objects: *mut c_void) -> c_int {
        // SAFETY: the linker's description of one object, and the list passed above.
        let (info, objects) = unsafe { (&*info, &mut *objects.cast::<Vec<Object>>()) };
        objects.extend(Object::new(info));
        0
    }
    let mut errand = Errand { look: Some(look), result: None };
    // SAFETY: the callback takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(first::<F, R>), (&raw mut errand).cast()) };
    errand.result
}

/// How many objects are loaded, of those that [`with_loaded`] shows. Allocates nothing.
pub(crate) fn count() -> usize {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the linker's description of one object, and the count passed below.
        let (info, count) = unsafe { (&*info, &mut *count.cast::<usize>()) };
        *count += usize::from(Object::new(info).is_some());
        0
    }
    let mut count = 0usize;
    // SAFETY: the callback takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut count).cast()) };
    count
}

/// How many objects have been unloaded since the process began.
pub(crate) fn unloaded() -> u64 {
    unsafe extern "C" fn read(info: *mut libc::dl_phdr_info, _: usize, count: *mut c_void) -> c_int {
        // SAFETY: the linker's description of one object, and the count passed below.
        unsafe { *count.cast::<u64>() = (*info).dlpi_subs };
        1
    }
    let mut count = 0u64;
    // SAFETY: the callback takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(read), (&raw mut count).cast()) };
    count
}

/// Bytes of thread-local storage that each new thread gets for the loaded objects.
pub(crate) fn tls_bytes() -> u64 {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, sum: *mut c_void) -> c_int {
        // SAFETY: the linker's description of one object, and the sum passed below.
        let (info, sum) = unsafe { (&*info, &mut *sum.cast::<u64>()) };
        *sum += headers(info).iter().filter(|h| h.p_type == libc::PT_TLS).map(|h| h.p_memsz).sum::<u64>();
        0
    }
    let mut sum = 0u64;
    // SAFETY: the callback takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    sum
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the linker describes as many program headers as it says.
    unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

/// An entry of the dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// Tags that we read (gABI figure 5-10; GNU_HASH and VERSYM from the GNU extensions).
mod tag {
    pub(super) const NEEDED: i64 = 1;
    pub(super) const PLTRELSZ: i64 = 2;
    pub(super) const STRTAB: i64 = 5;
    pub(super) const SYMTAB: i64 = 6;
    pub(super) const RELA: i64 = 7;
    pub(super) const RELASZ: i64 = 8;
    pub(super) const SONAME: i64 = 14;
    pub(super) const JMPREL: i64 = 23;
    pub(super) const GNU_HASH: i64 = 0x6fff_fef5;
    pub(super) const VERSYM: i64 = 0x6fff_fff0;
}

/// A symbol, as in `<elf.h>`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// A relocation with addend.
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

impl Object {
    fn new(info: &libc::dl_phdr_info) -> Option<Object> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        let at = |value: u64| base.wrapping_add(usize::try_from(value).unwrap_or(0));
        let loads = headers(info).iter().filter(|h| h.p_type == libc::PT_LOAD);
        let start = loads.clone().map(|h| at(h.p_vaddr)).min()?;
        let end = loads.map(|h| at(h.p_vaddr + h.p_memsz)).max()?;
        let dynamic = headers(info).iter().find(|h| h.p_type == libc::PT_DYNAMIC)?;
        Some(Object {
            base,
            start,
            end,
            name: info.dlpi_name,
            dynamic: ptr::with_exposed_provenance(at(dynamic.p_vaddr)),
        })
    }

    /// Its file name; empty for the program itself.
    pub(crate) fn file(&self) -> Option<&CStr> {
        // SAFETY: the linker's own NUL-terminated text, or null.
        (!self.name.is_null()).then(|| unsafe { CStr::from_ptr(self.name) })
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The address of what it exports under this name, in the default version.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<usize> {
        const UNDEFINED: u16 = 0;
        const HIDDEN: u16 = 0x8000;
        let table = self.address(tag::GNU_HASH)? as *const u32;
        let (symbols, versions) = (self.symbols()?, self.address(tag::VERSYM));
        let hash = name.to_bytes().iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add((*b).into()));
        // SAFETY: the layout of a GNU hash table: four numbers, a Bloom filter of 64-bit words,
        // the buckets, and a chain of hashes in step with the symbols from `first` on, whose
        // last member has bit 0 set.
        unsafe {
            let (buckets, first, filters) = (*table, *table.add(1), *table.add(2));
            if buckets == 0 {
                return None;
            }
            let heads = table.add(4 + 2 * filters as usize);
            let chain = heads.add(buckets as usize);
            let mut index = *heads.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            let mut fallback = None;
            loop {
                let member = *chain.add((index - first) as usize);
                let symbol = &*symbols.add(index as usize);
                if member | 1 == hash | 1
                    && symbol.section != UNDEFINED
                    && self.string(symbol.name as usize) == Some(name)
                {
                    let address = self.base.wrapping_add(symbol.value);
                    let version = versions.map_or(0, |v| *(v as *const u16).add(index as usize));
                    if version & HIDDEN == 0 {
                        return Some(address);
                    }
                    fallback = Some(address);
                }
                if member & 1 == 1 {
                    return fallback;
                }
                index += 1;
            }
        }
    }

    /// The names of the objects that it needs.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &CStr> {
        self.entries().filter(|d| d.tag == tag::NEEDED).filter_map(|d| self.string(d.value))
    }

    /// Whether another object that needs `name` means this one.
    pub(crate) fn is_called(&self, name: &CStr) -> bool {
        let soname = self.value(tag::SONAME).and_then(|at| self.string(at));
        soname == Some(name) || self.file().is_some_and(|file| file_name(file) == file_name(name))
    }

    /// Where an import is bound to whose name `wanted` accepts; what is not bound yet points into
    /// the object itself. The first that `found` takes ends the search.
    pub(crate) fn bound<T>(
        &self,
        wanted: impl Fn(&CStr) -> bool,
        found: impl Fn(usize) -> Option<T>,
    ) -> Option<T> {
        const GLOB_DAT: u64 = 6;
        const JUMP_SLOT: u64 = 7;
        let symbols = self.symbols()?;
        let tables = [(tag::JMPREL, tag::PLTRELSZ), (tag::RELA, tag::RELASZ)];
        for (table, size) in tables {
            let (Some(table), Some(size)) = (self.address(table), self.value(size)) else {
                continue;
            };
            // SAFETY: a table of relocations of the stated size.
            let relocations = unsafe {
                core::slice::from_raw_parts(table as *const Relocation, size / size_of::<Relocation>())
            };
            for r in relocations.iter().filter(|r| matches!(r.info & 0xffff_ffff, GLOB_DAT | JUMP_SLOT)) {
                let index = usize::try_from(r.info >> 32).unwrap_or(0);
                // SAFETY: relocations refer to symbols of their own object, and to a word of it
                // that the linker fills in while others may read it.
                let (symbol, at) = unsafe {
                    let slot = self.base.wrapping_add(r.offset) as *const usize;
                    (&*symbols.add(index), slot.read_volatile())
                };
                if self.string(symbol.name as usize).is_some_and(&wanted)
                    && !self.contains(at)
                    && let Some(result) = found(at)
                {
                    return Some(result);
                }
            }
        }
        None
    }

    fn entries(&self) -> impl Iterator<Item = Dynamic> + '_ {
        // SAFETY: the dynamic section is an array that ends with tag 0.
        (0..).map(|i| unsafe { *self.dynamic.add(i) }).take_while(|d| d.tag != 0)
    }

    fn value(&self, tag: i64) -> Option<usize> {
        self.entries().find(|d| d.tag == tag).map(|d| d.value)
    }

    /// An address in the dynamic section: glibc relocates these in place, but not in objects
    /// that it does not load itself (the vDSO).
    fn address(&self, tag: i64) -> Option<usize> {
        let value = self.value(tag)?;
        let here = [value, self.base.wrapping_add(value)];
        here.into_iter().find(|at| self.contains(*at))
    }

    fn symbols(&self) -> Option<*const Symbol> {
        Some(self.address(tag::SYMTAB)? as *const Symbol)
    }

    fn string(&self, offset: usize) -> Option<&CStr> {
        let at = self.address(tag::STRTAB)?.checked_add(offset)?;
        // SAFETY: offsets in an object's tables lie in its string table, whose texts end with NUL.
        self.contains(at).then(|| unsafe { CStr::from_ptr(at as *const c_char) })
    }
}

/// What follows the last slash.
fn file_name(path: &CStr) -> &[u8] {
    let path = path.to_bytes();
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

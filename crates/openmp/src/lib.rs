//! Preload library of corefit.

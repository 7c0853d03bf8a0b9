//! Readiness belongs to the instance that was polled.

/// Takes the instance that was polled ready out of `service` and leaves a clone that was not. The other way round,
/// calling the clone, panics under load (a limit hands out its permit to the instance that was asked).
pub(crate) fn take<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

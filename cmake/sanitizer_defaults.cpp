// How the sanitizers run in every program of a TORCHAMP_SANITIZE build. LibTorch itself is not
// instrumented, so what it keeps until the end of the process is not ours to report. ASAN_OPTIONS
// and the like still override.

extern "C" const char* __asan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "detect_stack_use_after_return=1:strict_init_order=1:"
         // Some tests ask for more memory than there is; that is an exception, not the end.
         "allocator_may_return_null=1:"
         // Mismatches arise where LibTorch's own allocations cross into inline code of its headers.
         "alloc_dealloc_mismatch=0";
}

extern "C" const char* __ubsan_default_options() {  // NOLINT(bugprone-reserved-identifier)
  return "print_stacktrace=1";
}

extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libtorch_cpu.so\nleak:libc10.so\nleak:libgomp\n";
}

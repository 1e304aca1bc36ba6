#pragma once
// Pages from the system and back. For blocks of the caching allocator; knows no tensors.

#include <cstddef>

namespace torchamp::ops::detail {

inline constexpr size_t kPage = 4096;
inline constexpr size_t kHugePage = size_t{2} << 20;

/// `bytes`, a multiple of a page, of zeros, at a page; from kHugePage on at a huge page, in huge
/// pages where the system has them. nullptr where the system refuses.
void* map_pages(size_t bytes);

/// Gives back what map_pages(bytes) returned.
void unmap_pages(void* data, size_t bytes);

/// With the address sanitizer, makes use of these bytes an error, or allows it again.
void forbid_use(const void* data, size_t bytes);
void allow_use(const void* data, size_t bytes);

}  // namespace torchamp::ops::detail

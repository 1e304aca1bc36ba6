#pragma once
// A registry that libraries fill before main() starts, as TORCH_LIBRARY does.

namespace registry {

int add();
int count();

}  // namespace registry

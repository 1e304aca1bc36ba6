#include "torchamp/checkpoint/storage_id.h"

namespace torchamp::checkpoint {
namespace {

using Kind = Node::Kind;

bool is_count(const Node& node) { return node.kind == Kind::kInt && node.integer >= 0; }

}  // namespace

std::optional<StorageId> parse_storage_id(const Node& storage) {
  const Node& id = *storage.items[0];
  const auto is = [&](size_t i, Kind kind) { return id.items[i]->kind == kind; };
  const bool is_id = id.kind == Kind::kTuple && (id.items.size() == 5 || id.items.size() == 6) &&
                     is(0, Kind::kString) && id.items[0]->text == "storage" &&
                     is(1, Kind::kGlobal) && is(2, Kind::kString) && is(3, Kind::kString) &&
                     is_count(*id.items[4]);
  if (!is_id) return std::nullopt;
  StorageId result;
  result.storage_class = id.items[1]->text;
  result.key = id.items[2]->text;
  result.length = id.items[4]->integer;
  result.is_untyped = result.storage_class == "torch.storage\nUntypedStorage";
  for (const std::string_view module : {"torch\n", "torch.cuda\n"}) {
    if (!result.is_untyped && result.storage_class.starts_with(module)) {
      result.dtype = find_dtype_by_storage(result.storage_class.substr(module.size()));
    }
  }
  if (result.dtype) result.item_bytes = static_cast<int64_t>(c10::elementSize(result.dtype->type));
  if (id.items.size() == 6 && !is(5, Kind::kNone)) {  // (key, offset, length)
    const Node& view = *id.items[5];
    const bool is_view = view.kind == Kind::kTuple && view.items.size() == 3 &&
                         is_count(*view.items[1]) && is_count(*view.items[2]);
    if (!is_view) return std::nullopt;
    result.view_offset = view.items[1]->integer;
    result.view_length = view.items[2]->integer;
  }
  return result;
}

}  // namespace torchamp::checkpoint

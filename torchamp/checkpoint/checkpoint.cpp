#include "torchamp/checkpoint/checkpoint.h"

#include <utility>

#include "torchamp/checkpoint/archive_writer.h"
#include "torchamp/checkpoint/atomic_file.h"
#include "torchamp/checkpoint/pickler.h"

namespace torchamp::checkpoint {

void save(const std::filesystem::path& path, const base::StateDict& dict) {
  Pickled pickled = pickle(dict);  // first: what cannot be written touches no file
  AtomicFile file(path);
  write_archive(std::move(pickled), path, file);
  file.commit();
}

void check_can_save(const std::filesystem::path& path) {
  const AtomicFile unwritten(path);  // goes away again, as it is not committed
}

}  // namespace torchamp::checkpoint

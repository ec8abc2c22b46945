#include "push.h"

#include <algorithm>

namespace relevo {
namespace {

size_t run_length(const std::vector<PagePair>& pairs, size_t first) {
  size_t length = 1;
  while (first + length < pairs.size() && length < kMaxParts &&
         pairs[first + length].source == pairs[first].source + length &&
         pairs[first + length].destination == pairs[first].destination + length) {
    ++length;
  }
  return length;
}

}  // namespace

std::vector<Write> writes_of(const Push& push, const std::vector<PagePair>& pairs,
                             const LayerMap& layer) {
  std::vector<Write> writes;
  bool whole = layer.whole_pages();
  for (size_t i = 0; i < pairs.size();) {
    size_t pages = whole ? run_length(pairs, i) : 1;
    for (const Copy& copy : layer.copies) {
      Immediate immediate{push.slot, push.generation, static_cast<uint32_t>(pages)};
      writes.push_back({
          .link = push.link,
          .local_region = layer.source_region,
          .local_offset = layer.source_base + pairs[i].source * layer.source_stride + copy.source,
          .remote_region = layer.destination_region,
          .remote_offset = layer.destination_base +
                           pairs[i].destination * layer.destination_stride + copy.destination,
          .length = copy.length * pages,
          .immediate = immediate.pack(),
          .token = 0,
      });
    }
    i += pages;
  }
  return writes;
}

}  // namespace relevo

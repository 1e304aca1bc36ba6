#pragma once
// The numbers of the zip format (PKWARE APPNOTE 6.3) that reader and writer share.

#include <cstdint>

namespace torchamp::checkpoint::zip {

inline constexpr uint32_t kLocalHeader = 0x04034B50;     // "PK\3\4"
inline constexpr uint32_t kDataDescriptor = 0x08074B50;  // "PK\7\8"
inline constexpr uint32_t kCentralHeader = 0x02014B50;   // "PK\1\2"
inline constexpr uint32_t kEnd = 0x06054B50;             // "PK\5\6"
inline constexpr uint32_t kEnd64 = 0x06064B50;           // "PK\6\6"
inline constexpr uint32_t kEnd64Locator = 0x07064B50;    // "PK\6\7"

inline constexpr uint64_t kLocalHeaderBytes = 30;
inline constexpr uint64_t kCentralHeaderBytes = 46;
inline constexpr uint64_t kEndBytes = 22;
inline constexpr uint64_t kEnd64Bytes = 56;
inline constexpr uint64_t kEnd64LocatorBytes = 20;

inline constexpr uint16_t kFlagEncrypted = 0x0001;
inline constexpr uint16_t kFlagDescriptor = 0x0008;  // checksum and size follow the data
inline constexpr uint16_t kFlagUtf8 = 0x0800;
inline constexpr uint16_t kExtraZip64 = 0x0001;
inline constexpr uint16_t kExtraPadding = 0x4246;  // "FB": PyTorch's alignment

inline constexpr uint32_t kMax32 = 0xFFFFFFFF;  // "see the zip64 field instead"
inline constexpr uint16_t kMax16 = 0xFFFF;

}  // namespace torchamp::checkpoint::zip

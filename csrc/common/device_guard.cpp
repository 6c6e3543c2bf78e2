// Registers a guard for PyTorch's built-in device type `ipu`, which has no kernels. Autograd
// requires a guard for each device. There is one stream and nothing to switch. The guard reports no
// device, because autograd would start a thread for each one, and could then not be used in a
// forked process. Traces differentiate on the calling thread.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace poptorch_emu {
namespace {

class IpuGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = c10::DeviceType::IPU;

  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return c10::Device(static_type, 0); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

C10_REGISTER_GUARD_IMPL(IPU, IpuGuard);

}  // namespace
}  // namespace poptorch_emu

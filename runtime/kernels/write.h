#pragma once

namespace sherd::kernels {

// What a kernel does with the elements already in its output.
//
// Every backward kernel takes one, so that gradients go straight to where they belong: the first
// contribution overwrites (the buffer may hold anything before), later ones add.
enum class Write { kOverwrite, kAdd };

}  // namespace sherd::kernels

import { defineConfig } from "vite";

// Names without a hash: the built files are committed and compared byte for byte, and the server
// answers with an ETag. Relative addresses, so that the page works below any path of an embedder.
export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/app.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/app.[ext]",
      },
    },
  },
  // `npm run dev` beside a `logreel serve`.
  server: { proxy: { "/v1": "http://127.0.0.1:7717" } },
});

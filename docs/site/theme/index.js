import { h } from "vue";
import DefaultTheme from "vitepress/theme";
import Versions from "./Versions.vue";
import "./site.css";

export default {
  extends: DefaultTheme,
  Layout: () => h(DefaultTheme.Layout, null, {
    "nav-bar-content-after": () => h(Versions),
    "nav-screen-content-after": () => h(Versions),
  }),
};
